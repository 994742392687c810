"""Training runtimes: the layouts they can run, why they reject others, and their configuration files."""
