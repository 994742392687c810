"""Search over all layouts of a runtime for the fastest training plan, with a proof of optimality."""
