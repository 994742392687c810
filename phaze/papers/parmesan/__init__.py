"""The page of the mappings: tables and figures of the Parmesan paper, pictures, and checks."""
