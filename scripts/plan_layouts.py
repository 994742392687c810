"""Find the fastest layout of a model on one system and number of devices, with its proof."""

from functools import partial
from pathlib import Path
from typing import get_args

import pandas as pd

from phaze.base.job import run_script
from phaze.plan.answer.answer import TrainingPlanner
from phaze.plan.answer.study import proof_row, ranked_rows, request
from phaze.spec.documents import write_document
from phaze.spec.layout_study import LayoutPoint, LayoutStudy
from phaze.spec.names import Rank
from phaze.tables.layouts import LayoutProofs, RankedLayouts
from phaze.validate.intervals import interval


def main(
    errors: str, outputs: dict[str, str], *, point: LayoutPoint, model: dict[str, object], asked: LayoutStudy
) -> None:
    """Plan the training, and write the ranked layouts, their proofs, and the plan file for other commands."""
    folder = Path(errors).parent
    question = request(asked, point, model, folder)
    rows, proofs = [], []
    for rank in get_args(Rank)[::-1]:  # prudent last: that plan is the one written
        asked_so = question.model_copy(update={"rank": rank})
        planner = TrainingPlanner(asked_so, partial(interval, folder=folder), asked.gap, folder)
        plans = planner.best(asked.top)
        answer = planner.answer(plans, asked.top)
        rows.append(ranked_rows(point, answer))
        proofs.append(proof_row(point, answer, planner.on_chip(plans.place).question.machine))
    RankedLayouts.save(pd.concat(rows), outputs["ranked_layouts"])
    LayoutProofs.save(pd.concat(proofs), outputs["layout_proofs"])
    write_document(answer, Path(outputs["plan"]))


if __name__ == "__main__":
    run_script(main, snakemake)
