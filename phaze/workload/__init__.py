"""The one graph of a model: layers of operators in order, for one slice of the devices that train it."""
