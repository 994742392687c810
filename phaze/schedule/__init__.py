"""Schedule: from the operators of a layer to when and where each of them runs."""
