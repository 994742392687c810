"""Place every model on the named architectures again, under the settings of every reading of the study.

READS   the settings: a reading may change extraction, estimates, schedules and placement; for winners of a grid also
        results/architectures/…, results/placements/…, results/commons/<scenario>.parquet
WRITES  results/readings/<reading>/<model>.parquet            tables.Readings
        results/readings/<reading>/<model>/winners.parquet    tables.Readings
        results/evaluations/: cache of evaluations by content, shared by all jobs over several points; safe to delete
"""


rule read:
    """Place a model on the named architectures under the settings of a reading."""
    message:
        "read {wildcards.model} as {wildcards.reading}"
    output:
        "<results>/readings/{reading}/{model}.parquet",
    params:
        model=lambda w: settings.models[w.model].model_dump(mode="json", exclude={"hyper_operators"}),
        widths=lambda w: list(settings.workload(w.model).tensor),
        problem=lambda w: settings.reading_problem(w.reading, w.model),
        architectures=lambda w: settings.read_architectures(w.model, FAMILIES),
        solutions=SOLUTIONS,
        evaluations=EVALUATIONS,
        code=source_digest("phaze.cost.space", "phaze.search.cosearch", programs=("glpsol",)),
    log:
        "<logs>/readings/{reading}/{model}.log",
    benchmark:
        "<benchmarks>/readings/{reading}/{model}.tsv"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(20),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/read.py"


rule read_winners:
    """Place a model on its best grid architecture and on the common one under the settings of a reading."""
    message:
        "read the winners of {wildcards.model} as {wildcards.reading}"
    input:
        placements=lambda w: points("placements", scenarios=[MAIN], models=[w.model]),
        commons=[f"<results>/commons/{MAIN}.parquet"],
        architectures=[f"<results>/architectures/{MAIN}/{shard}.parquet" for shard in settings.shards],
    output:
        "<results>/readings/{reading}/{model}/winners.parquet",
    params:
        model=lambda w: settings.models[w.model].model_dump(mode="json", exclude={"hyper_operators"}),
        widths=lambda w: list(settings.workload(w.model).tensor),
        problem=lambda w: settings.reading_problem(w.reading, w.model),
        tolerance=study["screen"]["tolerance"],
        area_limit=lambda w: settings.area_limit(MAIN),
        solutions=SOLUTIONS,
        evaluations=EVALUATIONS,
        code=source_digest(
            "phaze.cost.space", "phaze.search.cosearch", "phaze.report.winners", programs=("glpsol",)
        ),
    log:
        "<logs>/readings/{reading}/{model}/winners.log",
    benchmark:
        "<benchmarks>/readings/{reading}/{model}/winners.tsv"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(20),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/read.py"


rule readings:
    """Place every model of the study under every reading."""
    input:
        readings(),
