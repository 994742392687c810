"""phaze: which accelerator to build for a set of models, and how to spread their training over many of it."""
