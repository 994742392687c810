"""The search for the best accelerator: bounds on every architecture, the exact front, strategies."""
