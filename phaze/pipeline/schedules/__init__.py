"""Pipeline schedules by name; related schedules share a source file and a test."""

from phaze.pipeline.schedules.base import Passes, Schedule
from phaze.pipeline.schedules.dualpipe import DualPipe, DualPipeV
from phaze.pipeline.schedules.interleaved import Interleaved, InterleavedZeroBubble
from phaze.pipeline.schedules.plain import GPipe, Inference, LayerWise, OneForwardOneBackward, TwoBuffered
from phaze.pipeline.schedules.spaced import VHalf, VMin
from phaze.pipeline.schedules.zero_bubble import ZeroBubble, ZeroBubbleByTimes, ZeroBubbleTwice, ZeroBubbleV

_ALL: tuple[Schedule, ...] = (
    GPipe(), OneForwardOneBackward(), Interleaved(), ZeroBubble(), ZeroBubbleTwice(), ZeroBubbleByTimes(),
    InterleavedZeroBubble(), ZeroBubbleV(), VHalf(), VMin(), DualPipe(), DualPipeV(),
    TwoBuffered(), LayerWise(), Inference(),
)  # fmt: skip
SCHEDULES: dict[str, Schedule] = {schedule.name: schedule for schedule in _ALL}
"""All schedules by the name used in options and tables."""

__all__ = ["SCHEDULES", "Passes", "Schedule"]
