"""Chips to build: bounds of all designs, the compared chips with their plans, and the steps of the ladder."""

from phaze.spec.architecture import GRID_SIZES, Architecture
from phaze.tables.base import Table, columns_of, count, real, text

_CHIP = {"architecture": text("design or architecture"), "hbm_gib": real("HBM capacity")}
_STEP = {
    "step_s": real("step time of the best plan found; infinite without one", finite=False),
    "bound_s": real("lower bound on the step time with any layout; infinite if none fits", finite=False),
}
STOPPED = text("reason why the search ended before its gap was closed, empty if it is closed")


class ChipBounds(Table):
    """Chips of a search, each with a lower bound on the step time of a model with any layout."""

    keys = {"search": text("search: scenario and model, or step of the ladder"), **_CHIP}
    columns = {**columns_of(Architecture, *GRID_SIZES), "area_mm2": real("area of the chip"), **_STEP}
    rules = {"no plan is faster than its bound": lambda f: f["bound_s"] <= f["step_s"] * (1 + 1e-9)}


class ChosenChips(Table):
    """Chosen and compared chips of every scenario, each with the best plan of every model."""

    keys = {
        "scenario": text("scenario of `chips`"),
        "role": text("why the chip is listed: all, a model whose best chip it is, built, or template"),
        **_CHIP,
        "model": text("model"),
    }
    columns = {
        **columns_of(Architecture, *GRID_SIZES),
        "area_mm2": real("area of the chip"),
        "area_low_mm2": real("least area that the sources of the technology support"),
        "area_high_mm2": real("largest area that the sources of the technology support"),
        **_STEP,
        "times_best": real(
            "step time over that of the model's best chip; infinite without one", finite=False
        ),
        "mfu": real("model FLOPs utilisation"),
        "tokens_per_s_mm2": real("tokens per second and mm² of a chip"),
        "tokens_per_j": real("tokens per joule"),
        "bound_by": text("activity that takes most of the device time"),
        "layout": text("layout in short form, empty without a plan"),
        "stopped": STOPPED,
    }


class BestChips(Table):
    """Fastest step of every model on any chip of a scenario, and its lower bound over all chips."""

    keys = {"scenario": text("scenario of `chips`"), "model": text("model")}
    columns = {**_STEP, "gap": real("share by which any chip may be faster"), "stopped": STOPPED}
    rules = {"no plan is faster than its bound": lambda f: f["bound_s"] <= f["step_s"] * (1 + 1e-9)}


class LadderSteps(Table):
    """Best chip under the assumptions of each step of the ladder, and its gain over an architecture."""

    keys = {"step": count("number of the step, from 1", 1)}
    columns = {
        "name": text("name of the step"),
        "note": text("assumption that changes"),
        "model": text("model"),
        **_CHIP,
        "area_mm2": real("area of the best chip"),
        **_STEP,
        "built": text("architecture with which it is compared"),
        "built_s": real("step time of the best plan found there; infinite without one", finite=False),
        "gain": real("step time there over that of the best chip", finite=False),
        "most_gain": real("the same with the lower bound on the step time", finite=False),
        "stopped": STOPPED,
    }
    rules = {"the gain is within its bound": lambda f: f["gain"] <= f["most_gain"] * (1 + 1e-9)}
