"""Tiled accelerators compared with the PALM paper: figures, tables, claims, and checks."""
