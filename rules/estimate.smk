"""Estimate the time of every operator on every core design, and the area of every architecture.

READS   results/parts/<model>/<layout>.parquet
WRITES  results/architectures/<scenario>/<shard>.parquet                      tables.Architectures
        results/estimates/<scenario>/<model>/<layout>/<shard>.parquet        tables.Estimates
"""


rule enumerate_architectures:
    """Write the architectures of a shard: grid architectures within the area limit, and named ones."""
    message:
        "enumerate the architectures of {wildcards.shard} for {wildcards.scenario}"
    output:
        "<results>/architectures/{scenario}/{shard}.parquet",
    params:
        **by_shard(
            lambda scenario, shard: {
                "members": settings.members(shard),
                "area_limit": None if shard in settings.named_shards else settings.area_limit(scenario),
            }
        ),
        **stated(
            area_figures=settings.technology.area_um2.model_dump(mode="json"),
            code=source_digest("phaze.cost.space"),
        ),
    log:
        "<logs>/architectures/{scenario}/{shard}.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=growing(500),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/enumerate_architectures.py"


rule estimate:
    """Estimate every operator of a model on every core design of a shard."""
    message:
        "estimate {wildcards.model} {wildcards.layout} on {wildcards.shard}"
    input:
        parts="<results>/parts/{model}/{layout}.parquet",
        architectures=grid_file("<results>/architectures/{scenario}/{shard}.parquet"),
    output:
        "<results>/estimates/{scenario}/{model}/{layout}/{shard}.parquet",
    params:
        **stated_by(
            ("scenario", "shard", has_collectives),
            product(settings.scenarios, SHARDS, (False, True)),
            lambda scenario, shard, collectives: {
                "chip": settings.chip_of(shard),
                "hardware": settings.hardware(scenario, shard, collectives=collectives),
            },
        ),
        **stated(
            technology=settings.technology.model_dump(mode="json"),
            estimate=study["estimate"],
            code=source_digest("phaze.cost.operators", "phaze.cost.space"),
        ),
    log:
        "<logs>/estimates/{scenario}/{model}/{layout}/{shard}.log",
    threads: 1
    priority: DEPTH["estimate"]
    resources:
        mem_mb=growing(1000),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/estimate.py"


rule estimates:
    """Estimate every model of the study on every shard."""
    input:
        points("estimates", scenarios=estimate_scenarios),
