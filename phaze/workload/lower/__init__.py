"""Lower the layers of a model to the operators of one device: sharding, fusion, backward pass."""
