"""Time of an ideal pipeline in closed form."""

from phaze.base.arrays import Floats


def ideal_time_s(load_s: Floats, update_s: float, microbatches: int) -> float:
    """Time per batch of PALM's equation (1).

    (B/b - 1) * max(FD + BD) + sum(FD + BD) + GU, with `load_s` FD + BD of the stages, shape (p,), and B/b
    `microbatches` in a pipeline.
    """
    return float((microbatches - 1) * load_s.max() + load_s.sum() + update_s)
