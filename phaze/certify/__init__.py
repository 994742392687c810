"""Certify: from the screens and placements of a study to a proof that nothing is better, and its audit."""

from phaze.certify.audit import Model, Times, is_proven, judge_points, time_points
from phaze.certify.common import Aim, certify_common
from phaze.certify.draw import draw_points, share_out
from phaze.certify.space import names_of_space, read_shards
from phaze.certify.stage import Slice, Terms, best_row, certify_model

__all__ = [
    "Aim",
    "Model",
    "Slice",
    "Terms",
    "Times",
    "best_row",
    "certify_common",
    "certify_model",
    "draw_points",
    "is_proven",
    "judge_points",
    "names_of_space",
    "read_shards",
    "share_out",
    "time_points",
]
