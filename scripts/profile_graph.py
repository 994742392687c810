"""Profile a model: write the graph of its operators, with their times on a device."""

from contextlib import chdir
from pathlib import Path

import phaze
from phaze.base.job import run_script
from phaze.partition.profile import profile_model
from phaze.spec.documents import text_of, write_checked
from phaze.spec.files import is_path
from phaze.spec.map_study import MapGraph
from phaze.spec.models import parse_model
from phaze.workload.operator_graphs import stored_operators

HOME = Path(phaze.__file__).parent.parent
"""Folder that contains config/, independent of the results folder."""


def main(out: str, *, graph: MapGraph, model: dict[str, object], wildcards: dict[str, str]) -> None:
    """Write the graph of a model's operators with their times."""
    name, path = wildcards["graph"], Path(out).absolute()
    system = str(Path(graph.system).absolute()) if is_path(graph.system) else graph.system
    with chdir(HOME):
        profiled = profile_model(
            parse_model(model, name), graph.microbatch, system, compute_factor=graph.compute_factor
        )
    write_checked(text_of(stored_operators(profiled, name, graph.microbatch)), path)


if __name__ == "__main__":
    run_script(main, snakemake)
