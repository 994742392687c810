"""Models from PyTorch: what a module runs on the meta device, as a graph of operators.

Only `traced.record` imports PyTorch, which the default installation has not.
"""
