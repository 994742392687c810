"""Write the layer graph of a model."""

from typing import Literal

from phaze import tables
from phaze.base.job import run_script
from phaze.spec.models import parse_model
from phaze.workload.models import extract_graph


def main(
    out: str, *, wildcards: dict[str, str], model: dict[str, object], head: bool | Literal["in-layers"]
) -> None:
    """Write the layer graph of a model, named after its workload."""
    name = wildcards["model"]
    tables.Graphs.save(extract_graph(parse_model(model | {"name": name}, name), head=head), out)


if __name__ == "__main__":
    run_script(main, snakemake)
