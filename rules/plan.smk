"""Plan every model with several planners on the same architectures: Phaze's, Piper's, equal stages, experts' widths.

READS   results/{parts,operators,edges,layers}/<model>/<layout>.parquet, results/graphs/<model>.parquet,
        results/architectures/…, results/placements/…, results/commons/<scenario>.parquet
WRITES  results/plans/<scenario>/<model>.parquet          tables.Plans
        results/plan_stages/<scenario>/<model>.parquet    tables.PlanStages
"""


rule plan:
    """Plan a model on its winner, the common architecture and the baseline with every planner."""
    message:
        "plan {wildcards.model} with every planner"
    input:
        **POINT_TABLES,
        graph="<results>/graphs/{model}.parquet",
        placements=lambda w: points("placements", scenarios=[w.scenario], models=[w.model]),
        commons="<results>/commons/{scenario}.parquet",
        architectures=[f"<results>/architectures/{{scenario}}/{shard}.parquet" for shard in settings.shards],
    output:
        plans="<results>/plans/{scenario}/{model}.parquet",
        plan_stages="<results>/plan_stages/{scenario}/{model}.parquet",
    params:
        **problem_of(),
        **by_scenario(area_limit=settings.area_limit),
        **stated(
            choice={
                "baseline": study["architectures"]["baseline"],
                "named": study["architectures"]["named"],
                "best": study["screen"]["best"],
                "tolerance": study["screen"]["tolerance"],
            },
            planner=study["place"]["planner"],
            code=source_digest(
                "phaze.cost.space",
                "phaze.formulas.side_by_side",
                "phaze.search.cosearch",
                "phaze.search.winners",
                programs=("glpsol",),
            ),
        ),
        evaluations=EVALUATIONS,
    log:
        "<logs>/plans/{scenario}/{model}.log",
    threads: 1
    priority: FIRST
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/plan.py"


rule plans:
    """Plan every model of the study with every planner."""
    input:
        planned("plans"),
