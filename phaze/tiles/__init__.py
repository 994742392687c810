"""Tiled accelerators: the time of groups of tiles for operators at three fidelities (PALM)."""
