"""Mappings compared with the Parmesan paper: tables, figures, pictures, and checks."""
