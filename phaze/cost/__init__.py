"""Cost models of operators and collectives: time, energy, memory and chip area."""
