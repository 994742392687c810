"""The tile level of the simulator: what tile groups take for operators, at three fidelities (PALM, IV)."""

from phaze.simulate.tile.chip import Chip, Tile
from phaze.simulate.tile.group import GroupTimes, measure
from phaze.simulate.tile.operators import Convolution, Linear, Pool, Transformer
from phaze.simulate.tile.sram import Training
from phaze.simulate.tile.steps import Mode, Stage

__all__ = [
    "Chip",
    "Convolution",
    "GroupTimes",
    "Linear",
    "Mode",
    "Pool",
    "Stage",
    "Tile",
    "Training",
    "Transformer",
    "measure",
]
