"""Place every model on named architectures and winners again, under the settings of every reading of the study.

READS   the settings: a reading may change extraction, estimates, schedules and placement;
        results/architectures/…, and for winners of a grid results/placements/…, results/commons/<scenario>.parquet
WRITES  results/readings/<model>.parquet                      tables.Readings
        results/evaluations/: cache of evaluations by content, shared by all jobs over several points; safe to delete
"""


rule read:
    """Place a model on the named architectures and the winners of the grid under the settings of every reading.

    Readings share one job per model: with a job each, most of their time would be the start of Python.
    """
    message:
        "read {wildcards.model}"
    input:
        placements=lambda w: points("placements", scenarios=[MAIN], models=[w.model]) if HAS_GRID else [],
        commons=[f"<results>/commons/{MAIN}.parquet"] if HAS_GRID else [],
        architectures=[f"<results>/architectures/{MAIN}/{shard}.parquet" for shard in settings.shards],
    output:
        "<results>/readings/{model}.parquet",
    params:
        **problem_of(MAIN),
        **by_model(
            model=spec_of,
            widths=lambda model: list(settings.workload(model).tensor),
            readings=settings.reading_changes,
            named=lambda model: settings.read_architectures(model, FAMILIES),
        ),
        **stated(
            tolerance=study["screen"]["tolerance"],
            area_limit=settings.area_limit(MAIN),
            code=source_digest(
                "phaze.cost.space", "phaze.search.readings", "phaze.search.winners", programs=("glpsol",)
            ),
        ),
        evaluations=EVALUATIONS,
    log:
        "<logs>/readings/{model}.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(30),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/read.py"


rule readings:
    """Place every model of the study under every reading."""
    input:
        readings(),
