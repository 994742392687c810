"""Place every model on the kept architectures.

READS   results/layers/<model>/t<T>-b<B>.parquet, results/graphs/<model>.parquet, results/architectures/…,
        results/screens/…, results/solves/…
WRITES  results/placements/<scenario>/<model>/t<T>-b<B>/<shard>.parquet       tables.Placements
        results/stages/<scenario>/<model>/t<T>-b<B>/<shard>.parquet           tables.Stages
"""


rule place:
    """Find the best placement of a model on every kept architecture of a shard."""
    message:
        "place {wildcards.model} t={wildcards.tensor} b={wildcards.microbatch} on {wildcards.shard}"
    input:
        layers=LAYER_TABLES["layers"],
        graph="<results>/graphs/{model}.parquet",
        architectures="<results>/architectures/{scenario}/{shard}.parquet",
        screens="<results>/screens/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.parquet",
        solves="<results>/solves/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.parquet",
    output:
        placements="<results>/placements/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.parquet",
        stages="<results>/stages/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.parquet",
    params:
        scenario=lambda w: settings.scenarios[w.scenario].model_dump(mode="json"),
        training=lambda w: training_of(w.microbatch),
        flops_per_token=lambda w: settings.flops_per_token(w.model),
        energy=settings.technology.energy.model_dump(mode="json"),
        expert=lambda w: settings.expert(w.model),
        sequence=lambda w: settings.workload(w.model).sequence,
        code=source_digest("phaze.place"),
    log:
        "<logs>/placements/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.log",
    benchmark:
        "<benchmarks>/placements/{scenario}/{model}/t{tensor}-b{microbatch}/{shard}.tsv"
    threads: 1
    resources:
        mem_mb=2000,
        runtime=10,
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/place.py"


rule placements:
    """Place every model of the study on the kept architectures of every shard."""
    input:
        points("placements"),
