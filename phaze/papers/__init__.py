"""Claims, readings and printed tables of papers, beside a study's results."""
