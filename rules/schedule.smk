"""Schedule every layer on the kept architectures.

READS   results/{operators,edges}/<model>/<layout>.parquet, results/estimates/…, results/architectures/…,
        results/screens/…
WRITES  results/solves/<scenario>/<model>/<layout>/<shard>.parquet           tables.Solves
        results/schedules/<scenario>/<model>/<layout>/<shard>.parquet        tables.Schedules
        results/solutions/: verified solutions by content, shared by all jobs; safe to delete
"""


rule schedule:
    """Find the best schedule of every distinct layer on every kept architecture of a shard."""
    message:
        "schedule {wildcards.model} {wildcards.layout} on {wildcards.shard}"
    input:
        operators=LAYER_TABLES["operators"],
        edges=LAYER_TABLES["edges"],
        estimates=estimates_file,
        architectures=grid_file("<results>/architectures/{scenario}/{shard}.parquet"),
        screens=grid_file("<results>/screens/{scenario}/{model}/{layout}/{shard}.parquet"),
    output:
        solves="<results>/solves/{scenario}/{model}/{layout}/{shard}.parquet",
        schedules="<results>/schedules/{scenario}/{model}/{layout}/{shard}.parquet",
    params:
        **by_shard(lambda scenario, shard: {"chip": settings.chip_of(shard)}),
        **stated(
            area_figures=settings.technology.area_um2.model_dump(mode="json"),
            schedule=study["schedule"],
            solutions=SOLUTIONS,
            code=source_digest("phaze.cost.space", "phaze.schedule", programs=("glpsol",)),
        ),
    log:
        "<logs>/solves/{scenario}/{model}/{layout}/{shard}.log",
    threads: 1
    priority: DEPTH["schedule"]
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/schedule.py"


rule schedules:
    """Schedule every model of the study on the kept architectures of every shard."""
    input:
        points("solves"),
