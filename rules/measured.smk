"""Compare predictions with published training runs.

READS   config/measured.yaml and its files in config: measured, systems, devices, stacks
WRITES  results/measured_runs.parquet       tables.MeasuredRuns
        results/source_scores.parquet       tables.SourceScores
        results/group_regrets.parquet       tables.GroupRegrets
        results/tool_errors.parquet         tables.ToolErrors
        results/fitted_constants.parquet    tables.FittedConstants
        results/report/: validate.html, validate.md, and their tables as Parquet and CSV
"""


rule predict_measured:
    """Predict the runs of all sources, also with constants fitted without the source."""
    message:
        "predict the measured runs"
    input:
        MEASURED_FILES,
    output:
        **{table: f"<results>/{table}.parquet" for table in MEASURED_TABLES},
    params:
        **stated(sources=study["measured"]["sources"], code=source_digest("phaze.validate.study")),
    log:
        "<logs>/measured_runs.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(20),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/predict_measured.py"


rule report_measured:
    """Write the page of the measured runs: errors by source, fitted constants, other tools, choices, and checks."""
    message:
        "write the report of the measured runs"
    input:
        **{table: [f"<results>/{table}.parquet"] for table in MEASURED_TABLES},
    output:
        **{table: f"<results>/report/{table}.parquet" for table in MEASURED_SHEETS},
        sheets=[reported(f"{table}.csv") for table in MEASURED_SHEETS],
        page=reported("validate.html"),
        markdown="<results>/report/validate.md",
    params:
        **stated(
            validate=study["measured"],
            simulated=SIMULATED,
            code=source_digest("phaze.report.measured_page"),
        ),
    log:
        "<logs>/report/validate.log",
    threads: 1
    resources:
        mem_mb=growing(1000),
        runtime=growing(10),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/report_page.py"


rule measured:
    """Compare predictions with the runs of all sources."""
    input:
        "<results>/measured_runs.parquet",
