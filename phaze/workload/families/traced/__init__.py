"""Models from PyTorch: what a module runs on the meta device, as a graph of operators.

Only `workload.families.traced.record` imports PyTorch, which the default installation has not.
"""
