"""Model families: from a spec to the layers of its graph."""
