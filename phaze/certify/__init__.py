"""Certificates: proof from a study's screens and placements that nothing is better, and its audit."""
