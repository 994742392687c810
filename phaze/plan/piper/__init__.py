"""Piper: every stage with its own data and tensor parallelism, every layer with its own configuration."""
