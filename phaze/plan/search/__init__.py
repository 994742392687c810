"""Search over all layouts of a runtime for the fastest plan, with a proof of optimality."""
