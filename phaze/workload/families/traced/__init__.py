"""Operator graphs of PyTorch modules, traced on the meta device.

Only `workload.families.traced.record` imports PyTorch, which the default installation does not include.
"""
