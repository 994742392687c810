"""Proof that no design of a study beats the best one that was found, and an independent audit of it."""
