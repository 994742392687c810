"""Search for the fastest mapping of matrix multiplications onto systolic arrays and buffers."""
