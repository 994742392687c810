"""Model families: build the layer graph of a model from its spec."""
