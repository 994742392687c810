"""Theory: what stages share, as functions of plain arrays and dataclasses."""
