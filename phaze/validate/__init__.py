"""Compare predicted training runs and kernels with measured ones."""
