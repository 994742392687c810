"""Bound the time per batch of every architecture, and keep what could be the best.

READS   results/{operators,edges,layers}/<model>/t<T>-b<B>.parquet, results/graphs/<model>.parquet
        results/estimates/…, results/architectures/…
WRITES  results/screens/<scenario>/<model>/t<T>-b<B>/<shard>.parquet          tables.Screens
        results/architectures/<scenario>/common.parquet                       tables.Architectures
"""


rule screen:
    """Bound every architecture of a shard and keep those that could be among the best of the shard."""
    message:
        "screen {wildcards.model} t={wildcards.tensor} b={wildcards.microbatch} on {wildcards.shard}"
    input:
        **LAYER_TABLES,
        graph="<results>/graphs/{model}.parquet",
        estimates=estimates_file,
        architectures="<results>/architectures/{scenario}/{shard}.parquet",
    output:
        "<results>/screens/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.parquet",
    params:
        scenario=lambda w: settings.placement_scenario(w.scenario),
        training=training,
        screen=study["screen"],
        overlap_communication=study["schedule"]["overlap_communication"],
        code=source_digest("phaze.screen"),
    log:
        "<logs>/screens/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.log",
    benchmark:
        "<benchmarks>/screens/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/screen.py"


rule screens:
    """Screen every model of the study on every shard."""
    input:
        points("screens"),
