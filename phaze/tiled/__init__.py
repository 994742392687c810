"""Systems of tiles, as the simulator needs them, and what it finds for published cases."""
