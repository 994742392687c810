"""From the layers of a model to the operators that one device runs: sharding, fusion, backward pass."""
