"""Studies of models compared with the Phaze paper: accelerators, claims, readings, and differences."""
