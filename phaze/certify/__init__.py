"""Certify: from the screens and placements of a study to a proof that nothing is better, and its audit."""
