"""Write the layer graph of a model."""

from phaze import tables
from phaze.base.job import logged
from phaze.spec.models import parse_model
from phaze.workload.models import extract_graph


def main(out: str, *, name: str, model: dict[str, object], head: bool) -> None:
    """Write the layer graph of a model, named after its workload."""
    tables.Graphs.save(extract_graph(parse_model(model | {"name": name}, name), head=head), out)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            snakemake.output[0],
            name=snakemake.wildcards.model,
            model=snakemake.params.model,
            head=snakemake.params.head,
        )
