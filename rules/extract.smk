"""Extract the operators of model specifications.

READS   config/models/<model>
WRITES  results/graphs/<model>.parquet                              tables.Graphs
        results/{operators,parts,edges,layers}/<model>/<layout>.parquet
"""


rule extract_graph:
    """Write the layer graph of a model, the only table with the repetitions of layers."""
    message:
        "extract the layer graph of {wildcards.model}"
    output:
        "<results>/graphs/{model}.parquet",
    params:
        **by_model(model=spec_of),
        **stated(head=study["extract"]["head"], code=source_digest("phaze.workload.models")),
    log:
        "<logs>/graphs/{model}.log",
    localrule: True
    threads: 1
    resources:
        mem_mb=growing(500),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/extract_graph.py"


rule extract:
    """Write the operators of every distinct layer of a model in one layout."""
    message:
        "extract {wildcards.model} {wildcards.layout}"
    output:
        operators="<results>/operators/{model}/{layout}.parquet",
        parts="<results>/parts/{model}/{layout}.parquet",
        edges="<results>/edges/{model}/{layout}.parquet",
        layers="<results>/layers/{model}/{layout}.parquet",
    params:
        # Operators do not depend on the repetitions of a layer, so changing the layer count re-runs nothing here.
        **by_model(
            model=lambda model: settings.models[model].distinct().model_dump(mode="json"),
            sequence=lambda model: settings.workload(model).sequence,
        ),
        **stated(extract=study["extract"], code=source_digest("phaze.workload.models")),
    log:
        "<logs>/operators/{model}/{layout}.log",
    threads: 1
    resources:
        mem_mb=growing(500),
        runtime=growing(5),
    conda:
        "../envs/phaze.yaml"
    script:
        "../scripts/extract.py"


rule operators:
    """Extract every model of the study."""
    input:
        [
            f"<results>/operators/{model}/{layout.key}.parquet"
            for model in settings.models
            for layout in settings.layouts(model)
        ],
        [f"<results>/graphs/{model}.parquet" for model in settings.models],
