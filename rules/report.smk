"""Evaluate across models: the common architecture, search strategies, the sensitivity of winners, the report.

READS   all tables
WRITES  results/{placements,stages,solves,schedules}/<scenario>/<model>/common.parquet
        results/trials/<scenario>/<model>.parquet             tables.Trials
        results/sensitivities/<scenario>/<model>.parquet      tables.Sensitivities
        results/report/: report.html, report.md, and every result table as Parquet and CSV
"""

REPORT_TABLES = (
    "results",
    "gains",
    "comparisons",
    "memories",
    "rankings",
    "fronts",
    "breakdowns",
    "bindings",
    "energies",
    "areas",
    "complexities",
    "variations",
    "simulations",
    "walks",
    "searches",
    "proofs",
    "certificates",
    "audits",
    "checks",
)


rule place_common:
    """Schedule and place a model on every candidate for the common architecture."""
    message:
        "place {wildcards.model} on the candidates for a common architecture"
    input:
        **POINT_TABLES,
        graph="<results>/graphs/{model}.parquet",
        architectures="<results>/architectures/{scenario}/common.parquet",
    output:
        **{
            table: f"<results>/{table}/{{scenario}}/{{model}}/common.parquet"
            for table in ("placements", "stages", "solves", "schedules")
        },
    params:
        **problem_of(),
        **stated(code=source_digest("phaze.search.cosearch", programs=("glpsol",))),
        evaluations=EVALUATIONS,
    log:
        "<logs>/placements/{scenario}/{model}/common.log",
    threads: 1
    priority: FIRST
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/place_common.py"


rule compare:
    """Search for the best architecture of a model with every strategy, counting exact evaluations."""
    message:
        "compare search strategies for {wildcards.model}"
    input:
        **POINT_TABLES,
        graph="<results>/graphs/{model}.parquet",
        screens=lambda w: points("screens", [w.scenario], [w.model], settings.grid_shards),
        architectures=[
            f"<results>/architectures/{{scenario}}/{shard}.parquet" for shard in settings.grid_shards
        ],
    output:
        "<results>/trials/{scenario}/{model}.parquet",
    params:
        **problem_of(),
        **stated(
            area_band_um2=study["screen"]["area_band_um2"],
            code=source_digest("phaze.search.strategies", "phaze.search.throughputs", programs=("glpsol",)),
        ),
    log:
        "<logs>/trials/{scenario}/{model}.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(20),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/compare.py"


rule vary:
    """Place a model on its winner, the common architecture and the baseline under other bandwidths."""
    message:
        "vary the bandwidths under the winners of {wildcards.model}"
    input:
        **POINT_TABLES,
        graph="<results>/graphs/{model}.parquet",
        placements=lambda w: points("placements", scenarios=[w.scenario], models=[w.model]),
        commons="<results>/commons/{scenario}.parquet",
        architectures=[f"<results>/architectures/{{scenario}}/{shard}.parquet" for shard in settings.shards],
    output:
        "<results>/sensitivities/{scenario}/{model}.parquet",
    params:
        **problem_of(),
        **by_scenario(variations=settings.variations, area_limit=settings.area_limit),
        **stated(
            tolerance=study["screen"]["tolerance"],
            baseline=study["architectures"]["baseline"],
            code=source_digest(
                "phaze.cost.space", "phaze.search.cosearch", "phaze.search.winners", programs=("glpsol",)
            ),
        ),
        evaluations=EVALUATIONS,
    log:
        "<logs>/sensitivities/{scenario}/{model}.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/vary.py"


rule report:
    """Write the report: result tables, figures, one page, and the checks of the results."""
    message:
        "write the report"
    input:
        tables=[
            *(
                path
                for table in ("screens", "placements", "stages", "solves", "schedules")
                for path in points(table)
            ),
            *(path for table in ("operators", "layers") for path in operator_tables(table)),
            *points("estimates", scenarios=estimate_scenarios),
        ],
        graphs=[f"<results>/graphs/{model}.parquet" for model in settings.study.models],
        architectures=[
            f"<results>/architectures/{scenario}/{shard}.parquet"
            for scenario in settings.scenarios
            for shard in settings.shards
        ],
        certificates=f"<results>/certificates/{MAIN}.parquet",
        audits=[f"<results>/audits/{MAIN}/{model}.parquet" for model in settings.study.models],
        commons=[f"<results>/commons/{scenario}.parquet" for scenario in settings.scenarios],
        common=[
            path
            for table in ("placements", "stages", "schedules")
            for scenario in settings.scenarios
            for path in common_tables(table, scenario)
        ],
        fronts=fronts(MAIN),
        trials=compared(MAIN),
        sensitivities=[
            f"<results>/sensitivities/{MAIN}/{model}.parquet"
            for model in settings.study.models
            if settings.study.report.sensitivity
        ],
        readings=readings(),
        simulations=simulations(),
        source_scores=["<results>/source_scores.parquet"] if MEASURED.sources else [],
    output:
        **{table: f"<results>/report/{table}.parquet" for table in REPORT_TABLES},
        sheets=[reported(f"{table}.csv") for table in REPORT_TABLES],
        page=reported("report.html"),
        markdown="<results>/report/report.md",
    params:
        **study_without(OTHER_PAGES),
        **stated(
            scenarios={name: scenario_of(name) for name in settings.scenarios},
            area_limits={name: settings.area_limit(name) for name in settings.scenarios},
            estimates={name: settings.estimates_of(name) for name in settings.scenarios},
            technology=settings.technology.model_dump(mode="json"),
            parameters={name: settings.models[name].parameters for name in settings.study.models},
            models={name: spec_of(name) for name in settings.study.models},
            stack=CHIP_STACK,
            families=FAMILIES,
            code=source_digest("phaze.cost.space", "phaze.report.build"),
        ),
    log:
        "<logs>/report/report.log",
    threads: 1
    resources:
        mem_mb=growing(2500),
        runtime=growing(15),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/report.py"


rule check:
    """Fail unless all checks of the results pass: complete, feasible, consistent, no worse than the experts."""
    message:
        "check the results"
    input:
        CHECKS,
    output:
        touch("<results>/report/checked"),
    log:
        "<logs>/report/checked.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=growing(500),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/check.py"
