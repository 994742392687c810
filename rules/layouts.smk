"""Plan the training of models over all layouts of a runtime, independently of the models of the study.

READS   config/systems, config/devices, config/stacks and the errors of published runs
WRITES  results/ranked_layouts/<point>.parquet    tables.RankedLayouts
        results/layout_proofs/<point>.parquet     tables.LayoutProofs
        results/training_plans/<point>.json       the plan, for simulate and map
        results/report/: layouts.html, layouts.md, and their tables as Parquet and CSV
"""

ASKED = ("global_batch", "sequence", "runtime", "stack", "architecture", "gap", "top")
"""Settings shared by all sizes; the list of sizes is not among them, so that a new size re-runs no other."""
LAYOUT_TABLES = ("ranked_layouts", "layout_proofs", "layout-checks")


rule plan_layouts:
    """Find the fastest layout of a model on one system and number of devices, with its proof."""
    message:
        "plan {wildcards.question}"
    input:
        lambda w: settings.layout_inputs[LAYOUTS.points[w.question].system],
        errors=str(CONFIG / "errors.csv"),
        technology=str(CONFIG / "technologies/22nm.yaml"),
    output:
        ranked_layouts="<results>/ranked_layouts/{question}.parquet",
        layout_proofs="<results>/layout_proofs/{question}.parquet",
        plan="<results>/training_plans/{question}.json",
    params:
        **stated_by(
            ["question"],
            zip(LAYOUTS.points),
            lambda question: {
                "point": LAYOUTS.points[question].model_dump(mode="json"),
                "model": settings.layout_models[LAYOUTS.points[question].model],
            },
        ),
        **stated(
            asked={key: value for key, value in study["layouts"].items() if key in ASKED},
            code=source_digest("phaze.plan.answer.answer", "phaze.validate.intervals"),
        ),
    log:
        "<logs>/ranked_layouts/{question}.log",
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(30),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/plan_layouts.py"


rule report_layouts:
    """Write the page of training plans: the best plan of each size, fronts, and checks."""
    message:
        "write the report of the training plans"
    input:
        ranked_layouts=layout_tables("<results>/ranked_layouts"),
        layout_proofs=layout_tables("<results>/layout_proofs"),
    output:
        **{table: f"<results>/report/{table}.parquet" for table in LAYOUT_TABLES},
        sheets=[reported(f"{table}.csv") for table in LAYOUT_TABLES],
        page=reported("layouts.html"),
        markdown="<results>/report/layouts.md",
    params:
        **stated(layouts=study["layouts"], code=source_digest("phaze.report.layouts")),
    log:
        "<logs>/report/layouts.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/report_page.py"


rule layouts:
    """Plan every model, system and size of the training plans."""
    input:
        layout_tables("<results>/ranked_layouts"),
