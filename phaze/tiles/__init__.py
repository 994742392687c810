"""Time of operators on groups of tiles of a tiled accelerator, at three fidelities (PALM)."""
