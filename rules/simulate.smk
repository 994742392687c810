"""Simulate every plan event by event, with the differences from the planner's time.

READS   results/plans/<scenario>/<model>.parquet               tables.Plans
        results/plan_stages/<scenario>/<model>.parquet         tables.PlanStages
WRITES  results/simulations/<scenario>/<model>.parquet         tables.Simulations
        results/simulation_stages/<scenario>/<model>.parquet   tables.SimulationStages
        results/evaluations/simulations/<scenario>/<model>/: cache of simulated plans, by content; safe to delete
"""


rule simulate:
    """Simulate all plans of a model: on its winner, the common architecture and the baseline."""
    message:
        "simulate the plans of {wildcards.model}"
    input:
        plans="<results>/plans/{scenario}/{model}.parquet",
        plan_stages="<results>/plan_stages/{scenario}/{model}.parquet",
    output:
        simulations="<results>/simulations/{scenario}/{model}.parquet",
        simulation_stages="<results>/simulation_stages/{scenario}/{model}.parquet",
    params:
        **stated(code=source_digest("phaze.formulas.replay")),
        store=store_of("simulations"),
    log:
        "<logs>/simulations/{scenario}/{model}.log",
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
