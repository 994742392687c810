"""Search for the best accelerator: bounds on every architecture, the exact front, search strategies."""
