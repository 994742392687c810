"""Compare predicted kernels with measured ones: GEMMs, experts, attention, collectives."""
