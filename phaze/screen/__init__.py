"""Screen: from estimates to the architectures that could still be the best."""

from phaze.screen.common import choose_common, common_candidates
from phaze.screen.hysteresis import walk_areas
from phaze.screen.stage import screen_architectures

__all__ = ["choose_common", "common_candidates", "screen_architectures", "walk_areas"]
