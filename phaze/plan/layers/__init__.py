"""Costs of a model's layers on one tensor-parallel rank: kernels, collectives, stored activations."""
