"""Find the fastest layout of a model on one system and number of devices, with its proof."""

from functools import partial
from pathlib import Path
from typing import get_args

import pandas as pd

from phaze.base.job import logged
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.study import proof_row, ranked_rows, request
from phaze.spec.documents import write_document
from phaze.spec.layout_study import LayoutPoint, LayoutStudy
from phaze.spec.names import Rank
from phaze.tables.layouts import LayoutProofs, RankedLayouts
from phaze.validate.intervals import interval

Plain = dict[str, object]


def main(outputs: dict[str, str], *, point: Plain, model: Plain, asked: Plain, folder: Path) -> None:
    """Plan the training, and write the ranked layouts, their proofs, and the plan file for other commands."""
    study, size = LayoutStudy.parse(asked, "layouts"), LayoutPoint.parse(point, "layouts")
    question = request(study, size, model, folder)
    rows, proofs = [], []
    for rank in get_args(Rank)[::-1]:  # prudent last: that plan is the one written
        asked_so = question.model_copy(update={"rank": rank})
        planner = TrainingPlanner(asked_so, partial(interval, folder=folder), study.gap, folder)
        answer = planner.answer(planner.best(study.top), study.top)
        rows.append(ranked_rows(size, answer))
        proofs.append(proof_row(size, answer, planner.question.machine))
    RankedLayouts.save(pd.concat(rows), outputs["ranked_layouts"])
    LayoutProofs.save(pd.concat(proofs), outputs["layout_proofs"])
    write_document(answer, Path(outputs["plan"]))


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            dict(snakemake.output.items()),
            point=snakemake.params.point,
            model=snakemake.params.model,
            asked=snakemake.params.asked,
            folder=Path(snakemake.input.errors).parent,
        )
