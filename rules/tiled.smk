"""Simulate transformers on tiled accelerators.

READS   only the settings; for printed tables also config/systems, config/devices and some of config/models
WRITES  results/tiled_runs/<case>/<point>.parquet    tables.TiledRuns
        results/tiled_jobs/<case>/<point>.parquet    tables.TiledJobs
        results/tiled_links/<case>/<point>.parquet   tables.TiledLinks
        results/tiled_networks.parquet               tables.TiledNetworks
        results/tiled_besides.parquet                tables.TiledBesides
"""


rule simulate_tiled:
    """Simulate a model in a pipeline of tile groups, in every combination of options of a case."""
    message:
        "simulate {wildcards.tiled}, {wildcards.point}"
    output:
        tiled_runs="<results>/tiled_runs/{tiled}/{point}.parquet",
        tiled_jobs="<results>/tiled_jobs/{tiled}/{point}.parquet",
        tiled_links="<results>/tiled_links/{tiled}/{point}.parquet",
    params:
        **stated_by(
            ["tiled", "point"],
            [(case, point) for case in TILED.cases for point in TILED.cases[case].points()],
            tiled_sections,
        ),
        **stated(code=source_digest("phaze.tiles.on_tiles")),
    log:
        "<logs>/tiled_runs/{tiled}/{point}.log",
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(25),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/simulate_tiled.py"


rule simulate_networks:
    """Simulate the network of tiles alone."""
    message:
        "simulate the network of tiles alone"
    output:
        "<results>/tiled_networks.parquet",
    params:
        **stated(
            tiled={key: study["tiled"][key] for key in ("figures", "exchanges")},
            code=source_digest("phaze.tiles.network_cases"),
        ),
    log:
        "<logs>/tiled_networks.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(15),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/simulate_networks.py"


rule simulate_besides:
    """Recompute the printed tables with which the study compares its results."""
    message:
        "work out the printed tables on tiled accelerators"
    input:
        TABLE_FILES,
    output:
        "<results>/tiled_besides.parquet",
    params:
        **stated(
            tables=study["tiled"]["tables"],
            published=PUBLISHED.get("tiled"),
            code=source_digest("phaze.papers.palm.besides"),
        ),
    log:
        "<logs>/tiled_besides.log",
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(25),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/simulate_besides.py"


rule tiled:
    """Simulate all tiled cases."""
    input:
        tiled_tables("<results>/tiled_runs"),
