"""Workload of a model: layers of operators in order, for one tensor-parallel shard."""
