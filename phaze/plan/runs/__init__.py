"""Training runs of transformers on clusters, as a row of a table says them."""
