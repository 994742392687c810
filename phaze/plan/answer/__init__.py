"""Answer to a planning request: plans, certificate, comparisons and summaries."""
