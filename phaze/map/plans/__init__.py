"""Plans of a study mapped to the devices of a network, and simulated there."""
