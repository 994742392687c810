"""The partition stage: operators to stages of a pipeline, by clustering, dynamic program, and refinement."""
