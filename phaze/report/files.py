"""A report as files: its tables, its Markdown, and its page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from phaze.files import write_text
from phaze.report.document import Document
from phaze.report.page import render_markdown, render_page
from phaze.tables import Table


def write_report(
    document: Document, tables: Mapping[str, tuple[type[Table], pd.DataFrame]], folder: Path
) -> None:
    """Write every table as Parquet and CSV, then Markdown and the page, by the name of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (table, frame) in tables.items():
        table.save(frame, folder / f"{name}.parquet")
        write_text(folder / f"{name}.csv", frame.to_csv(index=False, lineterminator="\n"))
    page = folder / document.page
    write_text(page.with_suffix(".md"), render_markdown(document))
    write_text(page, render_page(document))
