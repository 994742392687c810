"""Bound the time per batch of every architecture, and keep those that could be the best.

READS   results/{operators,edges,layers}/<model>/<layout>.parquet, results/graphs/<model>.parquet
        results/estimates/…, results/architectures/…
WRITES  results/visits/<scenario>/<model>.parquet, with strategy hysteresis   tables.Visits
        results/screens/<scenario>/<model>/<layout>/<shard>.parquet          tables.Screens
        results/architectures/<scenario>/common.parquet                       tables.Architectures
        results/commons/<scenario>.parquet                                    tables.Commons
"""


rule screen:
    """Bound every architecture of a shard, and keep those that could be among the best of the shard."""
    message:
        "screen {wildcards.model} {wildcards.layout} on {wildcards.shard}"
    input:
        **LAYER_TABLES,
        graph="<results>/graphs/{model}.parquet",
        estimates=estimates_file,
        architectures="<results>/architectures/{scenario}/{shard}.parquet",
        visits=visits_file,
    output:
        "<results>/screens/{scenario}/{model}/{layout}/{shard}.parquet",
    params:
        **by_shard(point_sections),
        **stated(
            screen=SCREEN_SETTINGS,
            energy=settings.technology.energy.model_dump(mode="json"),
            overlap_communication=study["schedule"]["overlap_communication"],
            code=source_digest("phaze.search.stage"),
        ),
    log:
        "<logs>/screens/{scenario}/{model}/{layout}/{shard}.log",
    threads: 1
    priority: DEPTH["screen"]
    resources:
        mem_mb=growing(1000),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/screen.py"


rule walk:
    """Walk down the areas like the paper's Algorithm 1, scheduling and placing each visited architecture."""
    message:
        "walk {wildcards.model} down the areas"
    input:
        **POINT_TABLES,
        graph="<results>/graphs/{model}.parquet",
        architectures=[
            f"<results>/architectures/{{scenario}}/{shard}.parquet" for shard in settings.grid_shards
        ],
    output:
        "<results>/visits/{scenario}/{model}.parquet",
    params:
        **problem_of(),
        **stated(screen=study["screen"], code=source_digest("phaze.search.throughputs", programs=("glpsol",))),
    log:
        "<logs>/visits/{scenario}/{model}.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(60),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/walk.py"


rule find_common:
    """Write the candidates for the common architecture: those that could be the best over all models."""
    message:
        "find candidates for a common architecture for {wildcards.scenario}"
    input:
        screens=lambda w: points("screens", scenarios=[w.scenario]),
        architectures=[f"<results>/architectures/{{scenario}}/{shard}.parquet" for shard in settings.shards],
    output:
        "<results>/architectures/{scenario}/common.parquet",
    params:
        **by_scenario(
            global_batch=lambda scenario: settings.scenarios[scenario].global_batch,
            area_limit=settings.area_limit,
        ),
        **stated(
            weights=WEIGHTS,
            technology=settings.technology.model_dump(mode="json"),
            screen=study["screen"],
            code=source_digest("phaze.cost.space", "phaze.search.common"),
        ),
    log:
        "<logs>/architectures/{scenario}/common.log",
    threads: 1
    priority: FIRST
    resources:
        mem_mb=growing(1000),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/find_common.py"


rule choose_common:
    """Choose the common architecture among its candidates, from their exact placements."""
    message:
        "choose the common architecture for {wildcards.scenario}"
    input:
        common=lambda w: common_tables("placements", w.scenario),
        placements=lambda w: points("placements", scenarios=[w.scenario]),
        architectures="<results>/architectures/{scenario}/common.parquet",
    output:
        "<results>/commons/{scenario}.parquet",
    params:
        **stated(weights=WEIGHTS, screen=study["screen"], code=source_digest("phaze.search.common")),
    log:
        "<logs>/commons/{scenario}.log",
    localrule: True
    threads: 1
    priority: FIRST
    resources:
        mem_mb=growing(500),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/choose_common.py"


rule screens:
    """Screen every model of the study on every shard."""
    input:
        points("screens"),
