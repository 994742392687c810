"""The fastest mapping of matrix multiplications onto systolic arrays and their buffers."""
