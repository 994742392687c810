"""Page of measured runs: predictions compared with published measurements, by source."""
