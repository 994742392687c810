"""Plans that map a model to a cluster, their predicted step time, and the planners that choose them."""
