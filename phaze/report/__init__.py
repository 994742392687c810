"""Report of a study: its answer and result tables, next to published results."""
