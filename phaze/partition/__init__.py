"""Partition of operators into pipeline stages: clustering, dynamic program, and refinement."""
