"""Section of the Phaze paper: accelerators, claims, readings, and differences."""

from __future__ import annotations

from phaze.papers.page import Paper, paper_of
from phaze.papers.phaze.beside import (
    Beside,
    accelerators_sheet,
    claims_of,
    sizes_sheet,
    utilisation_chart,
    utilisation_sheet,
    walk_sheets,
)
from phaze.papers.phaze.differences import differences
from phaze.papers.phaze.readings import in_words, reading_figures, reading_scores, readings
from phaze.report.document import Block
from phaze.tables import ReadingFigures, ReadingScores


def phaze_paper(beside: Beside) -> Paper:
    """Phaze's section, comparing the paper with a study; speed-ups and utilisations only for its baseline."""
    figures, claims = reading_figures(beside), claims_of(beside)
    scores = reading_scores(beside, figures)
    blocks: list[Block] = list(sizes_sheet(beside))
    if beside.shares_baseline and beside.workloads:
        blocks = [
            accelerators_sheet(beside),
            *utilisation_chart(beside),
            utilisation_sheet(beside),
            *readings(beside, figures, scores),
            *walk_sheets(beside),
            *blocks,
        ]
        blocks += differences(beside)
    held = f"{int(claims['holds'].sum())} of {len(claims)} claims hold; a speed-up agrees within 10 %."
    return paper_of(
        "phaze",
        beside.published,
        " ".join(filter(None, (held, in_words(scores)))),
        blocks,
        {"reading_figures": (ReadingFigures, figures), "reading_scores": (ReadingScores, scores)},
        claims=("claims", claims),
        beside={name: getattr(beside, name) for name in ("results", "complexities", "walks")},
    )
