"""Typed nouns for everything that users write."""
