"""Pipelines of stages: schedules, their timeline and their memory, simulated event by event (PALM)."""
