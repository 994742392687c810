"""Kernel speeds and network constants of devices, by kind of kernel, fitted to measured kernels."""
