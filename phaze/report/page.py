"""A report as one HTML page that needs nothing else, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from phaze.report.document import Chart, Document, Gallery, Heading, Items, Prose, Sheet
from phaze.report.drawing import Drawn

_TAG = re.compile(r"<(?=[A-Za-z/!?])")


def _without_html(value: object) -> object:
    """Return text in which nothing begins a tag: readers of Markdown would take it for one."""
    return _TAG.sub("&lt;", value) if isinstance(value, str) else value


def _environment(finalize: Callable[[object], object] | None = None) -> Environment:
    environment = Environment(
        loader=PackageLoader("phaze.report"),
        autoescape=select_autoescape(["html"]),
        finalize=finalize,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    kinds = {
        "prose": Prose,
        "heading": Heading,
        "items": Items,
        "sheet": Sheet,
        "chart": Chart,
        "gallery": Gallery,
    }
    for name, kind in kinds.items():
        environment.tests[name] = lambda block, kind=kind: isinstance(block, kind)
    environment.filters["cell"] = _cell
    environment.filters["glued"] = _glued
    return environment


_UNIT = re.compile(r"(?<=\d) (?=(?:%|[munµ]?s|[KMGT]iB|[kMGTP]?B/s|mm²|microbatch)(?!\w))")
_BRACES = re.compile(r"\{[^{}]*\}")


def _glued(text: str) -> str:
    """Return prose whose numbers do not part from their units, nor braces in the middle."""
    return _UNIT.sub("\u00a0", _BRACES.sub(lambda found: found[0].replace(" ", "\u00a0"), text))


def _cell(text: str) -> str:
    """Return text that cannot end a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").split()) or " "


def render_page(document: Document, drawn: Mapping[str, Drawn]) -> str:
    """Return the HTML page: figures by name and tables inside, no script, no request to anywhere."""
    return _environment().get_template("page.html").render(document=document, drawn=drawn)


def render_markdown(document: Document) -> str:
    """Return the report for a terminal: all tables, with figures by their title."""
    return _environment(_without_html).get_template("report.md").render(document=document)
