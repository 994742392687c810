"""Write the page of the papers: printed results, the study's results, and the reasons for differences.

READS   tables of all parts of the study that are compared with a paper, and of the report of its models
WRITES  results/report/: papers.html, papers.md, and their tables as Parquet and CSV
"""

PAPER_INPUTS = {
    "report": {
        **{
            table: [f"<results>/report/{table}.parquet"]
            for table in ("results", "memories", "breakdowns", "complexities", "walks")
        },
        "graphs": [f"<results>/graphs/{model}.parquet" for model in settings.study.models],
        "architectures": [f"<results>/architectures/{MAIN}/{shard}.parquet" for shard in settings.shards],
        "placements": points("placements", scenarios=[MAIN]),
        "readings": readings(),
    },
    "plans": {table: case_tables(f"<results>/{table}") for table in ("cases", "pipelines", "curves")},
    "maps": {table: mapped(table) for table in ("mappings", "search_gaps")},
    "tiled": {
        **{
            table: tiled_tables(f"<results>/{table}") for table in ("tiled_runs", "tiled_jobs", "tiled_links")
        },
        "tiled_networks": ["<results>/tiled_networks.parquet"],
        "tiled_besides": ["<results>/tiled_besides.parquet"],
    },
}
"""Tables compared with a paper, by the part of the study that computes them."""
PAPER_TABLES = {
    "report": ("claims", "reading_figures", "reading_scores"),
    "plans": ("cases", "pipelines", "curves", "case-claims", "case-checks"),
    "maps": ("mappings", "speed-ups", "figures-read", "search-gaps", "map-checks"),
    "tiled": (
        "tiled_runs",
        "tiled_jobs",
        "tiled_links",
        "tiled_networks",
        "tiled_besides",
        "tiled_readings",
        "tiled-claims",
        "tiled-checks",
    ),
}
"""Tables written with the page, by part of the study."""


rule report_papers:
    """Write the page of the papers: figures, tables, claims, readings, and checks."""
    message:
        "write the page of the papers"
    input:
        **{f"{part}__{table}": paths for part in PAPERS for table, paths in PAPER_INPUTS[part].items()},
    output:
        tables=[f"<results>/report/{table}.parquet" for part in PAPERS for table in PAPER_TABLES[part]],
        sheets=[reported(f"{table}.csv") for part in PAPERS for table in PAPER_TABLES[part]],
        page=reported("papers.html"),
        markdown="<results>/report/papers.md",
    params:
        **study_without(("measured", "layouts", "chips")),
        **stated(
            published={part: PUBLISHED[part] for part in PAPERS if part in PUBLISHED},
            models=(
                {
                    "name": MAIN,
                    "scenario": scenario_of(MAIN),
                    "area_limit": settings.area_limit(MAIN),
                    "estimates": settings.estimates_of(MAIN),
                    "technology": settings.technology.model_dump(mode="json"),
                }
                if "report" in PAPERS
                else None
            ),
            flops=settings.tiled_flops,
            code=source_digest("phaze.papers", "phaze.cost.space"),
        ),
    log:
        "<logs>/report/papers.log",
    threads: 1
    resources:
        mem_mb=growing(2000),
        runtime=growing(15),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/report_papers.py"
