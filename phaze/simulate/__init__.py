"""Simulate: replay a placement event by event (PALM)."""

from phaze.simulate.events import simulate_events
from phaze.simulate.longest_path import simulate
from phaze.simulate.pipeline import Pipeline, StageCost
from phaze.simulate.timeline import Timeline

__all__ = ["Pipeline", "StageCost", "Timeline", "simulate", "simulate_events"]
