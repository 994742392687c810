"""Choose the chip to build: the best one of each scenario and model over all layouts, and one for all models.

READS   config/systems, config/devices, config/technologies, config/architectures
WRITES  results/chip_searches/<search>.json          the best plan on any chip, for simulate and map
        results/chip_bounds/<search>.parquet         tables.ChipBounds
        results/chip_plans/<search>/<chip>.json      the best plan on another chip
        results/chip_choices/<scenario>.json         the chip for all models, as `phaze chip -o` writes it
        results/report/: chips.html, chips.md, and their tables as Parquet and CSV
"""

CHIP_TABLES = ("chosen_chips", "best_chips", "ladder_steps", "chip-checks")


rule search_chips:
    """Find the best chip of a model over all designs and layouts, with a lower bound on every chip."""
    message:
        "search the best chip of {wildcards.search}"
    input:
        lambda w: settings.chip_inputs[w.search],
        usual_technology=str(CONFIG / "technologies/22nm.yaml"),
    output:
        plan="<results>/chip_searches/{search}.json",
        bounds="<results>/chip_bounds/{search}.parquet",
    params:
        **chip_params(needs_model=True),
        **stated(code=source_digest("phaze.plan.answer.chip_study")),
    log:
        "<logs>/chip_searches/{search}.log",
    threads: 1
    priority: FIRST
    resources:
        mem_mb=growing(4000),
        runtime=growing(60),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/search_chips.py"


rule plan_on_chip:
    """Find the best plan of a searched model on an architecture, or on the design nearest to it."""
    message:
        "plan {wildcards.search} on {wildcards.chip}"
    input:
        lambda w: settings.chip_inputs[w.search],
        usual_technology=str(CONFIG / "technologies/22nm.yaml"),
        chip=lambda w: str(chip_path(w.chip, CONFIG)),
        plan="<results>/chip_searches/{search}.json",
        bounds="<results>/chip_bounds/{search}.parquet",
    output:
        "<results>/chip_plans/{search}/{chip}.json",
    params:
        **chip_params(),
        **stated(code=source_digest("phaze.plan.answer.chip_study")),
        nearest=lambda w: w.chip in CHIPS.templates,
    log:
        "<logs>/chip_plans/{search}/{chip}.log",
    threads: 1
    resources:
        mem_mb=growing(4000),
        runtime=growing(30),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/plan_on_chip.py"


rule choose_chip:
    """Choose the chip for all models of a scenario, with a bound on the gain of any other."""
    message:
        "choose a chip for {wildcards.network}"
    input:
        usual_technology=str(CONFIG / "technologies/22nm.yaml"),
        plans=lambda w: chip_searches("chip_searches/{}.json", w.network),
        bounds=lambda w: chip_searches("chip_bounds/{}.parquet", w.network),
        others=lambda w: [
            f"<results>/chip_plans/{search}/{chip}.json"
            for search in chip_names(w.network)
            for chip in CHIPS.comparisons(search)
        ],
    output:
        "<results>/chip_choices/{network}.json",
    params:
        **stated_by(
            ["network"],
            zip(CHIPS.scenarios),
            lambda network: {
                "points": {name: CHIP_POINTS[name].model_dump(mode="json") for name in chip_names(network)}
            },
        ),
        **stated(seconds=study["chips"]["seconds"], code=source_digest("phaze.plan.answer.chip_study")),
    log:
        "<logs>/chip_choices/{network}.log",
    threads: 1
    priority: FIRST
    resources:
        mem_mb=growing(4000),
        runtime=growing(60),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/choose_chip.py"


rule report_chips:
    """Write the page of the chosen chips: what to build, how sure, for whom, and the ladder."""
    message:
        "write the report of the chips to build"
    input:
        choices=chip_choices(),
        bounds=[
            path for network in CHIPS.scenarios for path in chip_searches("chip_bounds/{}.parquet", network)
        ],
        plans=ladder_plans(),
        built=ladder_built(),
    output:
        **{table: f"<results>/report/{table}.parquet" for table in CHIP_TABLES},
        sheets=[reported(f"{table}.csv") for table in CHIP_TABLES],
        page=reported("chips.html"),
        markdown="<results>/report/chips.md",
    params:
        **stated(chips=study["chips"], code=source_digest("phaze.report.chips")),
    log:
        "<logs>/report/chips.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/report_chips.py"


rule chips:
    """Choose a chip for every scenario, and search those of the ladder."""
    input:
        chip_choices(),
        ladder_built(),
