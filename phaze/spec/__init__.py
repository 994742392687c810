"""Spec: what a user writes, as typed nouns."""
