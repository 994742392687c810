"""Event-driven simulation of pipelines of stages: schedules, timelines and memory (PALM)."""
