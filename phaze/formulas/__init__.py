"""Planners of the papers and by hand: formulas that claim a time for their plans, as baselines."""
