"""Errors, units, arrays, files, jobs, progress and provenance: what every other package may use."""
