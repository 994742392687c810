"""How a model should be trained on a cluster: all layouts that a runtime can run, the best with a proof."""
