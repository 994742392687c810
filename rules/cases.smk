"""Plan inputs with Piper and the planners with which it is compared.

READS   a file of plans.folder, or results/{layers,solves}/…, results/graphs/<model>.parquet of a study's model
WRITES  results/inputs/<input>.json: a model of the study in the format of the authors' inputs
        results/cases/<case>/<point>.parquet                  tables.Cases
        results/pipelines/<case>/<point>.parquet              tables.Pipelines
        results/curves/<case>/<point>.parquet                 tables.Curves
"""


rule write_input:
    """Write a model of the study on one of its accelerators as an input of Piper's planner."""
    message:
        "write input {wildcards.input}"
    input:
        layers=lambda w: own_tables("<results>/layers", w.input),
        solves=lambda w: own_tables(f"<results>/solves/{MAIN}", w.input, shard=settings.named_shard),
        graph=lambda w: f"<results>/graphs/{PLANS.inputs[w.input].own.workload}.parquet",
        architectures=f"<results>/architectures/{MAIN}/{settings.named_shard}.parquet",
    output:
        "<results>/inputs/{input}.json",
    params:
        own=lambda w: PLANS.inputs[w.input].own.model_dump(mode="json"),
        scenario=settings.scenarios[MAIN].model_dump(mode="json"),
        training=lambda w: training_of(PLANS.inputs[w.input].own.microbatch),
        sequence=lambda w: settings.workload(PLANS.inputs[w.input].own.workload).sequence,
        flops_per_token=lambda w: settings.flops_per_token(PLANS.inputs[w.input].own.workload),
        energy=settings.technology.energy.model_dump(mode="json"),
        code=source_digest("phaze.formulas.piper.study", "phaze.formulas.piper.instance"),
    log:
        "<logs>/inputs/{input}.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/write_input.py"


rule plan_case:
    """Plan an input with every planner of a case, on clusters of one memory size and batch."""
    message:
        "plan {wildcards.case}, {wildcards.point}"
    input:
        lambda w: PLANS.file_of(PLANS.made[w.case]) or f"<results>/inputs/{PLANS.made[w.case].input}.json",
    output:
        cases="<results>/cases/{case}/{point}.parquet",
        pipelines="<results>/pipelines/{case}/{point}.parquet",
        curves="<results>/curves/{case}/{point}.parquet",
    params:
        name=lambda w: PLANS.made[w.case].input,
        point=lambda w: PLANS.made[w.case].points()[w.point].model_dump(mode="json"),
        code=source_digest(
            "phaze.formulas.piper.baselines", "phaze.formulas.piper.study", "phaze.formulas.piper.instance"
        ),
    log:
        "<logs>/cases/{case}/{point}.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(30),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/plan_case.py"


rule cases:
    """Plan every case of the study."""
    input:
        case_tables("<results>/cases"),
