"""Replay every plan event by event, and say why its time differs from the planner's.

READS   results/plans/<scenario>/<model>.parquet               tables.Plans
        results/plan_stages/<scenario>/<model>.parquet         tables.PlanStages
WRITES  results/simulations/<scenario>/<model>.parquet         tables.Simulations
        results/simulation_stages/<scenario>/<model>.parquet   tables.SimulationStages
"""


rule simulate:
    """Simulate all plans of a model: the best placements on its winner, the common one and the baseline."""
    message:
        "simulate the plans of {wildcards.model}"
    input:
        plans="<results>/plans/{scenario}/{model}.parquet",
        plan_stages="<results>/plan_stages/{scenario}/{model}.parquet",
    output:
        simulations="<results>/simulations/{scenario}/{model}.parquet",
        simulation_stages="<results>/simulation_stages/{scenario}/{model}.parquet",
    params:
        network=lambda w: settings.scenarios[w.scenario].network_bandwidth_bytes_per_s,
        hbm=lambda w: settings.scenarios[w.scenario].hbm_bandwidth_bytes_per_s,
        code=source_digest("phaze.simulate.stage"),
    log:
        "<logs>/simulations/{scenario}/{model}.log",
    benchmark:
        "<benchmarks>/simulations/{scenario}/{model}.tsv"
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/simulate.py"


rule simulations:
    """Simulate all plans of the study."""
    input:
        planned("simulations"),
