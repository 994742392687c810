"""The page of the plans: figures and tables of the Piper paper, claims, and checks."""
