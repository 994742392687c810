"""Kernel speeds and network constants of devices, by part of the price, fitted on measured kernels."""
