"""Lower bounds on step time and memory of many layouts at once."""
