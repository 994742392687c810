"""Studies of models compared with the Phaze paper: accelerators, claims, interpretations, and differences."""
