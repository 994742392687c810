"""The planner of the Phaze paper: layers of a model on the devices of a cluster, for flushing pipelines."""
