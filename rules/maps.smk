"""Partition operator graphs into stages, and map the stages to devices.

READS   config/models, config/systems
WRITES  results/operator-graphs/<graph>.json                          operators with their times
        results/stage-graphs/<stages>.json                            stages of a partition
        results/mappings/<stages>/<topology>.parquet                  tables.Mappings
        results/mapped-devices/<stages>/<topology>.parquet            tables.MappedDevices
        results/search-gaps/<stages>/<topology>.parquet               tables.SearchGaps
"""


rule profile_graph:
    """Profile a model: write the graph of its operators with their times on a device."""
    message:
        "profile graph {wildcards.graph}"
    output:
        "<results>/operator-graphs/{graph}.json",
    params:
        **stated_by(
            ["graph"],
            zip(MAPS.graphs),
            lambda graph: {
                "graph": MAPS.graphs[graph].model_dump(mode="json"),
                "model": settings.map_models[graph][0],
                "system": settings.map_models[graph][1:],
            },
        ),
        **stated(code=source_digest("phaze.partition.profile")),
    log:
        "<logs>/operator-graphs/{graph}.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/profile_graph.py"


rule partition_graph:
    """Partition the operators of a model into stages."""
    message:
        "partition {wildcards.stages}"
    input:
        lambda w: f"<results>/operator-graphs/{MAPS.stages[w.stages].graph}.json",
    output:
        "<results>/stage-graphs/{stages}.json",
    params:
        **stated_by(
            ["stages"],
            zip(MAPS.stages),
            lambda stages: {
                "point": MAPS.stages[stages].model_dump(mode="json"),
                "bandwidth": MAPS.graphs[MAPS.stages[stages].graph].bandwidth_gib_per_s,
            },
        ),
        **stated(code=source_digest("phaze.partition.study")),
    log:
        "<logs>/stage-graphs/{stages}.log",
    threads: 1
    resources:
        mem_mb=growing(900),
        runtime=growing(30),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/partition_graph.py"


rule map_stages:
    """Map stages to a topology with every method, for every seed of the topology."""
    message:
        "map {wildcards.stages} to {wildcards.topology}"
    input:
        "<results>/stage-graphs/{stages}.json",
    output:
        mappings="<results>/mappings/{stages}/{topology}.parquet",
        mapped_devices="<results>/mapped-devices/{stages}/{topology}.parquet",
    params:
        **stated_by(["stages", "topology"], MAP_JOBS, map_sections),
        **stated_by(["stages", "topology"], MAP_JOBS, lambda *job: {"search": MAP_JOBS[job]}),
        **stated(
            settings={key: study["maps"][key] for key in ("tries", "steps", "seed", "memory_gib_per_s")},
            code=source_digest("phaze.map.study"),
        ),
    log:
        "<logs>/mappings/{stages}/{topology}.log",
    threads: 4
    resources:
        mem_mb=growing(1500),
        runtime=growing(60),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/map_stages.py"


rule map_gaps:
    """Measure the gap of the local search alone to the best mappings."""
    message:
        "search from near devices only: {wildcards.stages} on {wildcards.topology}"
    input:
        "<results>/stage-graphs/{stages}.json",
    output:
        "<results>/search-gaps/{stages}/{topology}.parquet",
    params:
        **stated_by(["stages", "topology"], GAP_JOBS, map_sections),
        **stated(
            settings={key: study["maps"][key] for key in ("tries", "gap_steps", "seed")},
            code=source_digest("phaze.map.study"),
        ),
    log:
        "<logs>/search-gaps/{stages}/{topology}.log",
    threads: 4
    resources:
        mem_mb=growing(6000),
        runtime=growing(60),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/map_gaps.py"


rule maps:
    """Map every case of the study."""
    input:
        mapped("mappings"),
