"""Compare predicted training runs with measured ones."""
