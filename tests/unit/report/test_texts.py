"""Texts of pages are data; each of them is shown by some code."""

from itertools import chain
from pathlib import Path

import phaze
from phaze.pages.page_words import TEXTS, PageWords, words_of
from phaze.papers.page import words_of as words_of_paper

PACKAGE = Path(phaze.__file__).parent


def test_every_text_of_a_page_is_named_by_code() -> None:
    code = "".join(file.read_text(encoding="utf-8") for file in sorted(PACKAGE.rglob("*.py")))
    pages = {file.stem: words_of(file.stem) for file in TEXTS.glob("*.yaml")}
    pages |= {paper: words_of_paper(paper) for paper in ("palm", "parmesan", "phaze", "piper")}
    assert len(pages) == 11
    for page, texts in pages.items():
        names = chain.from_iterable(getattr(texts, kind) for kind in PageWords.model_fields)
        assert not [name for name in names if f'"{name}"' not in code], page
