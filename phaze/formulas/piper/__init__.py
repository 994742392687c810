"""Piper planner: data and tensor parallelism per stage, and a configuration per layer."""
