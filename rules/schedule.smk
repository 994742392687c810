"""Schedule every layer on the kept architectures.

READS   results/{operators,edges}/<model>/t<T>-b<B>.parquet, results/estimates/…, results/architectures/…,
        results/screens/…
WRITES  results/solves/<scenario>/<model>/t<T>-b<B>/<shard>.parquet           tables.Solves
        results/schedules/<scenario>/<model>/t<T>-b<B>/<shard>.parquet        tables.Schedules
        results/solutions/: verified solutions by content, shared by all jobs; safe to delete
"""


rule schedule:
    """Find the best schedule of every distinct layer on every kept architecture of a shard."""
    message:
        "schedule {wildcards.model} t={wildcards.tensor} b={wildcards.microbatch} on {wildcards.shard}"
    input:
        operators=LAYER_TABLES["operators"],
        edges=LAYER_TABLES["edges"],
        estimates=estimates_file,
        architectures="<results>/architectures/{scenario}/{shard}.parquet",
        screens="<results>/screens/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.parquet",
    output:
        solves="<results>/solves/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.parquet",
        schedules="<results>/schedules/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.parquet",
    params:
        schedule=study["schedule"],
        solutions=SOLUTIONS,
        code=source_digest("phaze.schedule", programs=("glpsol",)),
    log:
        "<logs>/solves/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.log",
    benchmark:
        "<benchmarks>/solves/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.tsv"
    threads: 1
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
