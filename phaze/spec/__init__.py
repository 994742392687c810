"""Validated types for every file that users write."""
