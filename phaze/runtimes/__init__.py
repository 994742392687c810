"""Training runtimes: the layouts that each one can run, with reasons, and its configuration files."""
