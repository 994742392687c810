"""Errors, units, arrays, files, jobs, progress and provenance, for use by every other package."""
