"""Simulate every plan event by event, with the differences from the planner's time; map plans to networks.

READS   results/plans/<scenario>/<model>.parquet               tables.Plans
        results/plan_stages/<scenario>/<model>.parquet         tables.PlanStages
WRITES  results/simulations/<scenario>/<model>.parquet         tables.Simulations
        results/simulation_stages/<scenario>/<model>.parquet   tables.SimulationStages
        results/plan_maps/<scenario>/<model>.parquet           tables.PlanMaps
        results/plan_devices/<scenario>/<model>.parquet        tables.PlanDevices
        results/evaluations/simulations/<scenario>/<model>/: cache of simulated plans, by content; safe to delete
        results/evaluations/plan-maps/<scenario>/<model>/: cache of mapped plans, by content; safe to delete
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


rule map_plans:
    """Map a model's best plans to the devices of networks, and simulate them before and after mapping."""
    message:
        "map the plans of {wildcards.model} to networks"
    input:
        plans="<results>/plans/{scenario}/{model}.parquet",
        plan_stages="<results>/plan_stages/{scenario}/{model}.parquet",
    output:
        plan_maps="<results>/plan_maps/{scenario}/{model}.parquet",
        plan_devices="<results>/plan_devices/{scenario}/{model}.parquet",
    params:
        **by_scenario(devices=lambda scenario: settings.scenarios[scenario].devices),
        **stated(
            networks=settings.map_networks,
            search={key: study["report"]["maps"][key] for key in ("planners", "steps", "seed")},
            code=source_digest("phaze.map.study"),
        ),
        store=store_of("plan-maps"),
    log:
        "<logs>/plan_maps/{scenario}/{model}.log",
    threads: 1
    priority: FIRST
    resources:
        mem_mb=growing(2000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/map_plans.py"


rule simulations:
    """Simulate all plans of the study."""
    input:
        planned("simulations"),


rule plan_maps:
    """Map the best plans of the study to networks."""
    input:
        plan_maps("plan_maps"),
