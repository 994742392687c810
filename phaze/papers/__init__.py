"""Results of a study compared with papers: claims, interpretations, and published tables."""
