"""Runs: training runs of transformers on clusters, composed of extract, estimate and simulate."""
