"""Price the best placements of every model: on its best architecture, the common one and the baseline.

READS   results/{placements,stages}/<scenario>/<model>/<layout>/<shard>.parquet, …/common.parquet
        results/architectures/…, results/commons/<scenario>.parquet
WRITES  results/simulations/<scenario>/<model>.parquet   tables.Simulations
"""


rule simulate:
    """Simulate the plans of a model's best placements: their price, next to the time of the planner's formula."""
    message:
        "price the placements of {wildcards.model}"
    input:
        placements=lambda w: points("placements", scenarios=[w.scenario], models=[w.model]),
        stages=lambda w: points("stages", scenarios=[w.scenario], models=[w.model]),
        common_placements="<results>/placements/{scenario}/{model}/common.parquet",
        common_stages="<results>/stages/{scenario}/{model}/common.parquet",
        commons="<results>/commons/{scenario}.parquet",
        architectures=[f"<results>/architectures/{{scenario}}/{shard}.parquet" for shard in settings.shards],
    output:
        "<results>/simulations/{scenario}/{model}.parquet",
    params:
        **by_model(model=spec_of, sequence=lambda model: settings.workload(model).sequence),
        **by_scenario(scenario=scenario_of, area_limit=settings.area_limit),
        **stated(
            training=study["training"],
            technology=settings.technology.model_dump(mode="json"),
            stack=CHIP_STACK,
            baseline=study["architectures"]["baseline"],
            tolerance=study["screen"]["tolerance"],
            code=source_digest("phaze.cost.space", "phaze.formulas.priced", "phaze.search.winners"),
        ),
    log:
        "<logs>/simulations/{scenario}/{model}.log",
    threads: 1
    priority: FIRST
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/simulate.py"


rule simulations:
    """Price the best placements of all models of the study."""
    input:
        simulations(),
