"""Prove that no point of the space is better than the best, and verify the proof with independent code.

READS   results/{operators,edges,layers}/<model>/<layout>.parquet, results/graphs/<model>.parquet, results/estimates/…,
        results/architectures/…, results/screens/…, results/solves/…, results/placements/…, results/commons/<scenario>.parquet
WRITES  results/certificates/<scenario>/<model>.parquet       tables.Certificates
        results/ranges/<scenario>/<model>.parquet             tables.Ranges
        results/certificates/<scenario>.parquet               tables.Certificates, with the common architecture
        results/audits/<scenario>/<model>.parquet             tables.Audits
        results/evaluations/audits/<scenario>/<model>/: cache of re-solved points, by content; safe to delete
"""

CERTIFIED_TABLES = {
    **{table: model_tables(table) for table in ("operators", "edges", "layers")},
    "estimates": shard_tables("estimates", settings.estimates_of),
    "screens": shard_tables("screens"),
    "placements": shard_tables("placements"),
    "architectures": [f"<results>/architectures/{{scenario}}/{shard}.parquet" for shard in settings.shards],
}


rule certify:
    """Certify the best point of a model's space, with counts of the reasons that exclude the others."""
    message:
        "certify the best architecture for {wildcards.model}"
    input:
        **CERTIFIED_TABLES,
        graph="<results>/graphs/{model}.parquet",
        solves=shard_tables("solves"),
    output:
        certificate="<results>/certificates/{scenario}/{model}.parquet",
        ranges="<results>/ranges/{scenario}/{model}.parquet",
    params:
        **by_scenario(scenario=scenario_of, area_limit=settings.area_limit),
        **stated(
            training=study["training"],
            technology=settings.technology.model_dump(mode="json"),
            overlap_communication=study["schedule"]["overlap_communication"],
            code=source_digest("phaze.certify.stage", "phaze.cost.space"),
        ),
    log:
        "<logs>/certificates/{scenario}/{model}.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/certify.py"


rule certify_common:
    """Add the certificate of the common architecture to those of the models."""
    message:
        "certify the common architecture for {wildcards.scenario}"
    input:
        certificates=[
            f"<results>/certificates/{{scenario}}/{model}.parquet" for model in settings.study.models
        ],
        ranges=[f"<results>/ranges/{{scenario}}/{model}.parquet" for model in settings.study.models],
        commons="<results>/commons/{scenario}.parquet",
        common=lambda w: common_tables("placements", w.scenario),
        solves=lambda w: common_tables("solves", w.scenario),
        placements=lambda w: points("placements", scenarios=[w.scenario]),
        architectures=CERTIFIED_TABLES["architectures"],
    output:
        "<results>/certificates/{scenario}.parquet",
    params:
        **by_scenario(
            global_batch=lambda scenario: settings.scenarios[scenario].global_batch,
            area_limit=settings.area_limit,
        ),
        **stated(
            weights=WEIGHTS,
            technology=settings.technology.model_dump(mode="json"),
            screen=study["screen"],
            code=source_digest("phaze.certify.common", "phaze.cost.space"),
        ),
    log:
        "<logs>/certificates/{scenario}.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/certify_common.py"


rule audit:
    """Re-solve the best point of a model and some excluded ones, with code independent of screen and place."""
    message:
        "audit the certificate of {wildcards.model}"
    input:
        **CERTIFIED_TABLES,
        graph="<results>/graphs/{model}.parquet",
        certificates="<results>/certificates/{scenario}.parquet",
    output:
        "<results>/audits/{scenario}/{model}.parquet",
    params:
        **by_scenario(scenario=scenario_of, area_limit=settings.area_limit),
        **stated(
            training=study["training"],
            schedule=study["schedule"],
            certify=study["certify"],
            technology=settings.technology.model_dump(mode="json"),
            code=source_digest(
                "phaze.certify.draw", "phaze.certify.verification", "phaze.cost.space", programs=("glpsol",)
            ),
        ),
        store=store_of("audits"),
    log:
        "<logs>/audits/{scenario}/{model}.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/audit.py"


rule certificates:
    """Certify the best architectures of the scenario of the report, and verify the certificates."""
    input:
        f"<results>/certificates/{MAIN}.parquet",
        [f"<results>/audits/{MAIN}/{model}.parquet" for model in settings.study.models],
