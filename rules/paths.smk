"""Paths and settings shared by several rules.

Params are texts of one setting each, such as `training.microbatches: 16`. A rule has only the settings that its jobs
depend on. Snakemake prints the texts that differ as the reason of a job.
"""

from itertools import product
from operator import attrgetter

PUBLISHED = {}
if any(getattr(settings.study, part).published for part in ("report", "plans", "tiled", "maps")):
    from phaze.papers.publications import load_publications  # only studies of papers import it

    try:
        PUBLISHED = load_publications(settings.study, CONFIG)
    except PhazeError as error:
        raise WorkflowError(str(error)) from None
FAMILIES = PUBLISHED.get("report", {}).get("families", {})
"""Families of named accelerators: the accelerator designed for each workload."""

SOLUTIONS = workflow.pathvars.apply("<results>/solutions")  # Snakemake resolves them in paths, not in params
EVALUATIONS = workflow.pathvars.apply("<results>/evaluations")
MAIN = next(iter(settings.scenarios))
LAYER_TABLES = {
    table: f"<results>/{table}/{{model}}/{{layout}}.parquet" for table in ("operators", "edges", "layers")
}

DEPTH = {"estimate": 1, "screen": 2, "schedule": 3, "place": 4}
"""Priorities of the stages: chains that have begun are finished first. Whenever a job ends, Snakemake looks at the
input files of all jobs that could begin, which takes longer than some jobs."""
FIRST = 5
"""Priority of the critical path to the report: the common architecture, plans on it, and their mappings."""


def stated(**sections):
    """Return params for the settings of some sections."""
    return {name: unexpanded(text) for name, text in split_params(**sections).items()}


def unexpanded(text):
    """Return a param with a text, whose braces Snakemake would take for wildcards but in a function's result."""
    return (lambda w: text) if re.search(r"{[^\"}]", text) else text


def stated_by(wildcards, values, sections):
    """Return params for settings that depend on wildcards, or on functions of them.

    `values` has all of their combinations; `sections` returns the sections of one.
    """
    readers = [attrgetter(wildcard) if isinstance(wildcard, str) else wildcard for wildcard in wildcards]
    texts = {at: split_params(**sections(*at)) for at in values}

    def param(name):
        by_values = {at: text.get(name, "") for at, text in texts.items()}
        distinct = {*by_values.values()}
        # Snakemake calls every function for every job, which takes longer than planning most jobs.
        if len(distinct) == 1:
            return unexpanded(*distinct)
        return lambda w: by_values[tuple(read(w) for read in readers)]

    names = [*dict.fromkeys(name for text in texts.values() for name in text)]
    # Snakemake compares the set of all params. One that is always empty keeps a job from running again
    # because a setting of other jobs alone, which it lacks, is new.
    return {f"lacking_{name}": "" for name in names[:1]} | {name: param(name) for name in names}


def growing(amount):
    """Return a resource that doubles with every attempt, so that a retry does not fail for the same reason."""
    return lambda wildcards, attempt: amount * 2 ** (attempt - 1)


estimate_scenarios = tuple(dict.fromkeys(map(settings.estimates_of, settings.scenarios)))


def points(table, scenarios=tuple(settings.scenarios), models=settings.study.models, shards=settings.shards):
    """Return the files of a table for all scenarios, models, layouts and shards."""
    return [
        f"<results>/{table}/{scenario}/{model}/{layout.key}/{shard}.parquet"
        for scenario in scenarios
        for model in models
        for layout in settings.layouts(model)
        for shard in shards
    ]


def model_tables(table):
    """Return an input function for the files of an operator table, for all layouts of the rule's model."""
    return lambda w: operator_tables(table, [w.model])


def shard_tables(table, scenario_of=lambda scenario: scenario):
    """Return an input function for the files of a table, for all layouts and shards of the rule's model."""
    return lambda w: points(table, scenarios=[scenario_of(w.scenario)], models=[w.model])


def operator_tables(table, models=settings.study.models):
    """Return the files of an operator table for all models and layouts."""
    return [
        f"<results>/{table}/{model}/{layout.key}.parquet"
        for model in models
        for layout in settings.layouts(model)
    ]


def grid_file(path):
    """Return an input function for a file of a shard; a shard with a single named architecture needs none."""
    return lambda w: [] if w.shard in settings.named_shards else path.format(**dict(w.items()))


def estimates_file(w):
    """Return the file of the estimates, which scenarios with equal hardware share."""
    scenario = settings.estimates_of(w.scenario)
    return f"<results>/estimates/{scenario}/{w.model}/{w.layout}/{w.shard}.parquet"


WALKS = study["screen"]["strategy"] == "hysteresis"
SCREEN_SETTINGS = {
    key: study["screen"][key] for key in ("best", "tolerance", *(("strategy", "hysteresis") if WALKS else ()))
}


def visits_file(w):
    """Return the file of the walk down the areas, or none if the strategy does not walk."""
    return [f"<results>/visits/{w.scenario}/{w.model}.parquet"] if WALKS else []


def common_tables(table, scenario):
    """Return the files of the candidates for the common architecture, one per model."""
    return [f"<results>/{table}/{scenario}/{model}/common.parquet" for model in settings.study.models]


def fronts(scenario):
    """Return the files of the fronts of all models; none for a study without a grid."""
    models = settings.study.models if settings.grid_shards else ()
    return [f"<results>/fronts/{scenario}/{model}.parquet" for model in models]


def store_of(answers):
    """Return a params function for the folder in which a job caches its results."""
    return lambda w: f"{EVALUATIONS}/{answers}/{w.scenario}/{w.model}"


HAS_GRID = settings.study.architectures.grid is not None


SHARDS = tuple(dict.fromkeys((*settings.shards, *settings.front_shards)))


def problem_of(scenario=None):
    """Return params for the `Problem` of a rule's model, without a cache, by default in the rule's scenario."""
    sections = ("training", "extract", "estimate", "schedule")
    params = {"technology": settings.technology.model_dump(mode="json"), "solutions": SOLUTIONS}
    in_scenario = stated(scenario=scenario_of(scenario)) if scenario else by_scenario(scenario=scenario_of)
    return stated(**params, **{name: study[name] for name in sections}) | in_scenario | MODEL_PARAMS


def scenario_of(scenario):
    """Return the settings of a scenario."""
    return settings.scenarios[scenario].model_dump(mode="json")


def by_scenario(**sections):
    """Return params for settings that depend on the rule's scenario, by a function of its name."""
    return stated_by(
        ["scenario"], zip(settings.scenarios), lambda name: {part: of(name) for part, of in sections.items()}
    )


def by_model(**sections):
    """Return params for settings that depend on the rule's model, by a function of its name."""
    return stated_by(
        ["model"], zip(settings.models), lambda name: {part: of(name) for part, of in sections.items()}
    )


MODEL_PARAMS = by_model(
    sequence=lambda model: settings.workload(model).sequence,
    flops_per_token=settings.flops_per_token,
    expert=settings.expert,
)
"""Params for the settings of a `Problem` that depend on its model."""


def by_shard(sections):
    """Return params for settings that depend on the scenario and shard of a rule."""
    return stated_by(("scenario", "shard"), product(settings.scenarios, SHARDS), sections)


def point_sections(scenario, shard):
    """Return the sections on which screens and placements of a shard depend, whatever the other shards are."""
    training = {key: value for key, value in study["training"].items() if key != "microbatches"}
    return {
        "scenario": {key: value for key, value in scenario_of(scenario).items() if key != "area_limit_mm2"},
        "training": training | {"hbm_gib": settings.sizes_of(shard)},
    }


def has_collectives(w):
    """Return whether the layers of a rule's layout exchange data over the network."""
    layout = Layout.of_key(w.layout)
    return any(layout.group(axis).ranks > 1 for axis in LAYER_AXES)


def spec_of(model):
    """Return the settings of a model."""
    return settings.models[model].model_dump(mode="json", exclude={"hyper_operators"})


WEIGHTS = {name: settings.workload(name).weight for name in settings.study.models}


def study_without(others):
    """Return params for the sections of the study other than some."""
    return stated(**{f"study_{section}": value for section, value in study.items() if section not in others})


def compared(scenario):
    """Return the files of the trials of search strategies shown in the report."""
    models = settings.study.report.strategies.models if settings.grid_shards else ()
    return [
        f"<results>/trials/{scenario}/{model}.parquet" for model in models if model in settings.study.models
    ]


def simulations():
    """Return the files of the prices shown in the report."""
    return [f"<results>/simulations/{MAIN}/{model}.parquet" for model in settings.study.models]


CHIP_STACK = load_stack(STACKS["chip"], CONFIG).model_dump(mode="json")
"""Software stack with which placements are priced: a static schedule of operators on the cores."""


def readings():
    """Return the files of the readings of the study, including its own settings."""
    models = settings.study.models if settings.study.readings else ()
    return [f"<results>/readings/{model}.parquet" for model in models]


POINT_TABLES = {table: model_tables(table) for table in ("parts", "operators", "edges", "layers")}
CHECKED = {
    "report": ("checks", settings.study.models),
    "plans": ("case-checks", settings.study.plans.made),
    "tiled": ("tiled-checks", settings.study.tiled.cases),
    "maps": ("map-checks", settings.study.maps.cases),
    "validate": ("measured-checks", settings.study.measured.sources),
    "layouts": ("layout-checks", settings.study.layouts.models),
    "chips": ("chip-checks", settings.study.chips.models),
}
"""Name of the checks of each part of a study, and the content of that part; empty if the study lacks it."""
CHECKS = [f"<results>/report/{checks}.parquet" for checks, content in CHECKED.values() if content]
OTHER_PAGES = ("plans", "tiled", "maps", "measured", "layouts", "chips")
"""Parts of a study that are independent of the report of the models."""
PAPERS = [
    *(["report"] if settings.study.models and "report" in PUBLISHED else []),
    *(part for part in ("plans", "maps", "tiled") if CHECKED[part][1]),
]
"""Parts of a study that are compared with a paper."""
PAGES = [
    *(
        f"<results>/report/{page}.html"
        for page in ("chips", "report", "validate", "layouts")
        if CHECKED[page][1]
    ),
    *(["<results>/report/papers.html"] if PAPERS else []),
]
SHOWN = {
    "report.html": "accelerators and placements",
    "validate.html": "measured runs",
    "layouts.html": "training plans",
    "chips.html": "chips to build",
    "papers.html": "papers",
    "results.csv": "winners",
    "source_scores.csv": "errors by source",
    "ranked_layouts.csv": "fastest layouts",
}
"""Labels of the files that `snakemake --report` shows."""


def reported(file):
    """Return a file of the report; one that `snakemake --report` shows has label, category and caption."""
    path = f"<results>/report/{file}"
    if file not in SHOWN:
        return path
    stem, _, kind = file.partition(".")
    category = {"html": "Pages", "csv": "Tables"}[kind]
    return report(path, caption=f"captions/{stem}.rst", category=category, labels={"shows": SHOWN[file]})


PLANS = settings.study.plans
MAPS = settings.study.maps
LAYOUTS = settings.study.layouts


def layout_tables(folder):
    """Return the files of a table for all models, systems and sizes of the training plans."""
    return [f"{folder}/{question}.parquet" for question in LAYOUTS.points]


CHIPS = settings.study.chips
CHIP_POINTS = CHIPS.points
"""Searches for the best chip of a model, by name."""


def chip_names(network):
    """Return the searches of all models in a scenario."""
    return [search_name(network, model) for model in CHIPS.models]


def chip_searches(path, network):
    """Return a file of every search in a scenario."""
    return [f"<results>/{path.format(search)}" for search in chip_names(network)]


def chip_choices():
    """Return the files of the chosen chips of all scenarios."""
    return [f"<results>/chip_choices/{network}.json" for network in (CHIPS.scenarios if CHIPS.models else ())]


def chip_params(needs_model=False):
    """Return params for the settings of a search, with its model if it has not been searched yet."""
    return stated_by(
        ["search"],
        zip(CHIP_POINTS),
        lambda search: {
            "point": CHIP_POINTS[search].model_dump(mode="json"),
            **({"model": settings.chip_models[search]} if needs_model else {}),
        },
    )


def ladder_plans():
    """Return the files of the best plans of the steps of the ladder."""
    return [f"<results>/chip_searches/{search}.json" for search in CHIPS.steps.values()]


def ladder_built():
    """Return the files of the plans of the steps of the ladder on the architecture over which chips gain."""
    return [f"<results>/chip_plans/{search}/{CHIPS.compared[0]}.json" for search in CHIPS.steps.values()]


def case_tables(folder):
    """Return the files of a table for all cases and points."""
    return [f"{folder}/{case}/{point}.parquet" for case in PLANS.made for point in PLANS.made[case].points()]


TILED = settings.study.tiled
TABLE_FILES = (
    [
        str(path)
        for pattern in (
            "systems/*.yaml",
            "devices/*.yaml",
            "technologies/22nm.yaml",
            "models/resnet-50.yaml",
            "models/bert-base.yaml",
            "published/palm-2024.yaml",
        )
        for path in sorted(CONFIG.glob(pattern))
    ]
    if TILED.tables
    else []
)
"""Input files for the printed tables on tiled accelerators."""


MEASURED = settings.study.measured
SIMULATED = list(PublishedRuns.load(CONFIG).simulated) if MEASURED.sources else []
"""Sources of measured runs whose times look simulated."""
MEASURED_TABLES = ("measured_runs", "source_scores", "group_regrets", "tool_errors", "fitted_constants")
MEASURED_SHEETS = (*MEASURED_TABLES, "measured-checks")
MEASURED_FILES = (
    [
        str(path)
        for pattern in (
            "measured.yaml",
            "other-tools.csv",
            "errors.csv",
            *(f"measured/{source}.csv" for source in MEASURED.sources),
            "measured/*.yaml",
            "systems/*.yaml",
            "devices/*.yaml",
            "stacks/*.yaml",
            "technologies/22nm.yaml",
        )
        for path in sorted(CONFIG.glob(pattern))
    ]
    if MEASURED.sources
    else []
)
"""Input files for predictions of measured runs; the first is in the configuration folder."""


def tiled_tables(folder):
    """Return the files of a table for all tiled cases and points."""
    return [
        f"{folder}/{case}/{point}.parquet" for case in TILED.cases for point in TILED.cases[case].points()
    ]


def own_tables(folder, name, shard=None):
    """Return the files of a table for all layouts of the study's model from which an input is made."""
    own = PLANS.inputs[name].own
    at = [f"{own.workload}/{layout.key}" for layout in settings.layouts(own.workload, (own.microbatch,))]
    return [f"{folder}/{point}/{shard}.parquet" if shard else f"{folder}/{point}.parquet" for point in at]


MAP_TABLES = {
    "mappings": "<results>/mappings",
    "search_gaps": "<results>/search-gaps",
}
MAP_JOBS = MAPS.searches([case for case in MAPS.cases if case not in MAPS.showing("gaps")])
"""Mapping search by stages and topology."""
GAP_JOBS = MAPS.searches(MAPS.showing("gaps"))
"""The same of mappings whose gap to the best is measured."""


def mapped(table):
    """Return the distinct files of a table for all stages and topologies of its cases."""
    jobs = GAP_JOBS if table == "search_gaps" else MAP_JOBS
    return [f"{MAP_TABLES[table]}/{stages}/{topology}.parquet" for stages, topology in jobs]


def shard_of_input(w):
    """Return the shard with the architecture of a model of the study that is an input."""
    return settings.shard_of(PLANS.stand_ins[w.input].architecture)


def map_sections(stages, topology):
    """Return the sections on which every mapping of stages to a topology depends."""
    return {
        "point": MAPS.stages[stages].model_dump(mode="json"),
        "topology": MAPS.topologies[topology].model_dump(mode="json"),
    }


def tiled_sections(case, name):
    """Return the sections on which the simulation of a point of a case depends."""
    point = TILED.cases[case].points()[name]
    return {
        "point": point.model_dump(mode="json"),
        "model": settings.tiled_models[point.model].model_dump(mode="json"),
        "system": settings.tiled_systems[point.system],
    }
