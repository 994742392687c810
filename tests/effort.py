"""How many random cases tests draw."""

import os

DRAWS = int(os.environ.get("PHAZE_DRAWS", "40"))
"""Cases of every law, unless they are so large that it says fewer. `PHAZE_DRAWS=200 pytest` draws more."""
