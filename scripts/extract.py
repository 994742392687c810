"""Write the operators of every distinct layer of a model."""

from phaze import tables
from phaze.base.job import logged
from phaze.layout import Layout
from phaze.spec.models import parse_model
from phaze.spec.settings import ExtractSettings
from phaze.workload.models import extract_workload


def main(
    outputs: dict[str, str],
    *,
    name: str,
    model: dict[str, object],
    sequence: int,
    layout: str,
    settings: dict[str, object],
) -> None:
    """Write the tables of a model's operators, named after its workload."""
    found = extract_workload(
        parse_model(model | {"name": name}, name),
        sequence,
        Layout.of_key(layout),
        ExtractSettings.parse(settings, "extract"),
    )
    for table, path in outputs.items():
        tables.TABLES[table].save(found.tables[table], path)


if __name__ == "__main__":
    with logged(snakemake.log[0], settings=dict(snakemake.params), output=snakemake.output[0]):
        main(
            dict(snakemake.output.items()),
            name=snakemake.wildcards.model,
            model=snakemake.params.model,
            sequence=snakemake.params.sequence,
            layout=snakemake.wildcards.layout,
            settings=snakemake.params.extract,
        )
