"""Execution time of operators on tile groups of a tiled accelerator, at three fidelities (PALM)."""
