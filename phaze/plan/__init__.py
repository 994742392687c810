"""Plans: how a model is spread over a cluster, what a step then takes, and the planners that choose."""
