"""Plans: how a model is mapped to a cluster, the step time that results, and the planners that choose."""
