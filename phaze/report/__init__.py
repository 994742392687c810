"""Report: from the tables of a study to its answer, beside what was published."""
