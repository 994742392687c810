"""The tile level of the simulator: what tile groups take for operators, at three fidelities (PALM, IV)."""

from phaze.simulate.tile.chip import Chip, Tile

__all__ = ["Chip", "Tile"]
