"""Plans compared with the Piper paper: figures, tables, claims, and checks."""
