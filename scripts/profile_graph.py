"""Profile a model: write the graph of its operators, with their times on a device."""

from contextlib import chdir
from pathlib import Path

import phaze
from phaze.base.job import logged
from phaze.partition.profile import profile_model
from phaze.spec.documents import text_of, write_checked
from phaze.spec.files import is_path
from phaze.spec.map_study import MapGraph
from phaze.spec.models import parse_model
from phaze.workload.operator_graphs import stored_operators

HOME = Path(phaze.__file__).parent.parent
"""Folder that contains config/, independent of the results folder."""


def main(out: Path, *, name: str, graph: dict[str, object], model: dict[str, object]) -> None:
    """Write the graph of a model's operators with their times."""
    given = MapGraph.parse(graph, f"maps.graphs.{name}")
    system = str(Path(given.system).absolute()) if is_path(given.system) else given.system
    with chdir(HOME):
        found = profile_model(
            parse_model(model, name), given.microbatch, system, compute_factor=given.compute_factor
        )
    write_checked(text_of(stored_operators(found, name, given.microbatch)), out)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            Path(snakemake.output[0]).absolute(),
            name=snakemake.wildcards.graph,
            graph=snakemake.params.graph,
            model=snakemake.params.model,
        )
