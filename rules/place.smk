"""Place every model on the kept architectures.

READS   results/layers/<model>/<layout>.parquet, results/graphs/<model>.parquet, results/architectures/…,
        results/screens/…, results/solves/…
WRITES  results/placements/<scenario>/<model>/<layout>/<shard>.parquet       tables.Placements
        results/stages/<scenario>/<model>/<layout>/<shard>.parquet           tables.Stages
        results/fronts/<scenario>/<model>.parquet                             tables.Fronts
        results/{placements,stages}/<scenario>/<model>/front.parquet: placements made to find the front
        results/evaluations/: cache of evaluations by content, shared by all jobs over several points; safe to delete
"""


rule place:
    """Find the best placement of a model on every kept architecture of a shard."""
    message:
        "place {wildcards.model} {wildcards.layout} on {wildcards.shard}"
    input:
        layers=LAYER_TABLES["layers"],
        graph="<results>/graphs/{model}.parquet",
        architectures="<results>/architectures/{scenario}/{shard}.parquet",
        screens=grid_file("<results>/screens/{scenario}/{model}/{layout}/{shard}.parquet"),
        solves="<results>/solves/{scenario}/{model}/{layout}/{shard}.parquet",
    output:
        placements="<results>/placements/{scenario}/{model}/{layout}/{shard}.parquet",
        stages="<results>/stages/{scenario}/{model}/{layout}/{shard}.parquet",
    params:
        **by_shard(point_sections),
        **MODEL_PARAMS,
        **stated(
            energy=settings.technology.energy.model_dump(mode="json"),
            code=source_digest("phaze.formulas.phaze.model"),
        ),
    log:
        "<logs>/placements/{scenario}/{model}/{layout}/{shard}.log",
    threads: 1
    priority: DEPTH["place"]
    resources:
        mem_mb=growing(1000),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/place.py"


rule place_front:
    """Find the Pareto front of a model over its whole space, placing every point that may belong to it."""
    message:
        "place the Pareto front of {wildcards.model}"
    input:
        **POINT_TABLES,
        graph="<results>/graphs/{model}.parquet",
        screens=lambda w: points("screens", [w.scenario], [w.model], settings.front_shards),
        architectures=[
            f"<results>/architectures/{{scenario}}/{shard}.parquet" for shard in settings.front_shards
        ],
    output:
        fronts="<results>/fronts/{scenario}/{model}.parquet",
        placements="<results>/placements/{scenario}/{model}/front.parquet",
        stages="<results>/stages/{scenario}/{model}/front.parquet",
    params:
        **problem_of(),
        **(by_scenario(space=settings.front_space) if settings.grid_shards else {}),
        **stated(code=source_digest("phaze.search.front", programs=("glpsol",))),
        evaluations=EVALUATIONS,
    log:
        "<logs>/fronts/{scenario}/{model}.log",
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/place_front.py"


rule placements:
    """Place every model of the study on the kept architectures of every shard."""
    input:
        points("placements"),
