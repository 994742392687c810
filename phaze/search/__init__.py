"""Search for the best accelerator: bounds on every architecture, exact Pareto front, search strategies."""
