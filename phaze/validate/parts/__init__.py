"""Compare parts of the price with measured kernels: products, experts, attention, collectives."""
