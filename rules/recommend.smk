"""Recommend a chip and a plan for every model, over all layouts, if the study asks for it (`recommend`).

READS   results/architectures/<scenario>/<shard>.parquet
WRITES  results/recommendations/<scenario>/<model>.parquet   tables.layouts.Recommendations
"""

SIZES = (
    study["training"]["hbm_gib"]
    if HAS_GRID or not all(chip.hbm_gib for chip in settings.architectures.values())
    else []
)
"""HBM capacities of chips without their own; none if every architecture has one."""


rule recommend:
    """Find the fastest plan of a model on any chip within the area limit, over all layouts, with its bound."""
    message:
        "recommend a chip and a plan for {wildcards.model}"
    input:
        architectures=[f"<results>/architectures/{{scenario}}/{shard}.parquet" for shard in settings.shards],
        usual_technology=str(CONFIG / "technologies/22nm.yaml"),
    output:
        "<results>/recommendations/{scenario}/{model}.parquet",
    params:
        **by_model(model=spec_of, sequence=lambda model: settings.workload(model).sequence),
        **by_scenario(scenario=scenario_of, area_limit=settings.area_limit),
        **stated(
            hbm_gib=SIZES,
            technology=settings.technology.model_dump(mode="json"),
            stack=CHIP_STACK,
            code=source_digest(
                "phaze.cost.space",
                "phaze.plan.answer.recommended",
                "phaze.plan.chips",
                "phaze.search.winners",
            ),
        ),
    log:
        "<logs>/recommendations/{scenario}/{model}.log",
    threads: 1
    priority: FIRST
    resources:
        mem_mb=growing(2000),
        runtime=growing(60),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/recommend.py"


rule recommendations:
    """Recommend a chip and a plan for every model of the study."""
    input:
        recommendations(),
