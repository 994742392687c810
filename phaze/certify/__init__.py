"""Certificates: proof from a study's screens and placements that no design is better, and its audit."""
