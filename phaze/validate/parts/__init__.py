"""Parts of a price beside measured kernels and collectives: products, experts, attention, collectives."""
