"""Training software: the layouts that each runtime can run, with reasons, and its configuration files."""
