"""How many random cases tests draw."""

import os

import pytest

DRAWS = int(os.environ.get("PHAZE_DRAWS", "20"))
"""Cases of every law, unless they are so large that it says fewer. `PHAZE_DRAWS=200 pytest` draws more,
as the weekly job does.
"""
EVERY = 200
"""Number of draws from which on tests also check cases that are like others and take seconds."""
if_every = pytest.mark.skipif(DRAWS < EVERY, reason=f"like faster cases; PHAZE_DRAWS={EVERY} checks it")
