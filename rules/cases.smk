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
        solves=lambda w: own_tables(f"<results>/solves/{MAIN}", w.input, shard=shard_of_input(w)),
        graph=lambda w: f"<results>/graphs/{PLANS.inputs[w.input].own.workload}.parquet",
        architectures=lambda w: f"<results>/architectures/{MAIN}/{shard_of_input(w)}.parquet",
    output:
        "<results>/inputs/{input}.json",
    params:
        **stated_by(
            ["input"],
            zip(PLANS.stand_ins),
            lambda name: {
                "own": PLANS.stand_ins[name].model_dump(mode="json"),
                "sequence": settings.workload(PLANS.stand_ins[name].workload).sequence,
                "flops_per_token": settings.flops_per_token(PLANS.stand_ins[name].workload),
            },
        ),
        **stated(
            scenario=scenario_of(MAIN),
            training={key: value for key, value in study["training"].items() if key != "microbatches"},
            energy=settings.technology.energy.model_dump(mode="json"),
            code=source_digest("phaze.formulas.piper.study", "phaze.formulas.piper.instance"),
        ),
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
        **stated_by(
            ["case", "point"],
            [(case, point) for case in PLANS.made for point in PLANS.made[case].points()],
            lambda case, point: {
                "name": PLANS.made[case].input,
                "point": PLANS.made[case].points()[point].model_dump(mode="json"),
            },
        ),
        **stated(
            code=source_digest(
                "phaze.formulas.piper.baselines",
                "phaze.formulas.piper.study",
                "phaze.formulas.piper.instance",
            )
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
