"""The page of measured runs: predictions beside published measurements, by source."""
