"""The page of tiled accelerators: figures and tables of the PALM paper beside ours, claims, and checks."""
