"""Schedule: from the operators of a layer to when and where each of them runs."""

from phaze.schedule.stage import schedule_layers
from phaze.schedule.store import SolutionStore

__all__ = ["SolutionStore", "schedule_layers"]
