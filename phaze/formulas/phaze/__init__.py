"""Planner of the Phaze paper: placement of a model's layers on a cluster, for flushing pipelines."""
