"""Constants of a device that its kernels reach, by part of the price, each fitted on measured kernels."""
