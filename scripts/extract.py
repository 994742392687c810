"""Write the operators of every distinct layer of a model."""

from phaze import tables
from phaze.base.job import run_script
from phaze.layout import Layout
from phaze.spec.models import parse_model
from phaze.spec.settings import ExtractSettings
from phaze.workload.models import extract_workload


def main(
    outputs: dict[str, str],
    *,
    wildcards: dict[str, str],
    model: dict[str, object],
    sequence: int,
    extract: ExtractSettings,
) -> None:
    """Write the tables of a model's operators, named after its workload."""
    name, layout = wildcards["model"], Layout.of_key(wildcards["layout"])
    workload = extract_workload(parse_model(model | {"name": name}, name), sequence, layout, extract)
    for table, path in outputs.items():
        tables.TABLES[table].save(workload.tables[table], path)


if __name__ == "__main__":
    run_script(main, snakemake)
