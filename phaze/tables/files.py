"""Files of tables whose name only the file says."""

from pathlib import Path

import pandas as pd

from phaze.base.errors import PhazeError
from phaze.tables import layouts  # noqa: F401 (so that its tables are known)
from phaze.tables.base import TABLES, table_name


def read_any(path: str | Path) -> pd.DataFrame:
    """Load a file of any table."""
    name = table_name(path)
    if name not in TABLES:
        raise PhazeError(f"{path}: holds no phaze table")
    return TABLES[name].load(path)
