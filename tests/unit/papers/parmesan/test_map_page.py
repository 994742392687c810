"""Speed-ups are ratios of step times, medians over seeds; checks find violations."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from phaze.pages.document import Sheet
from phaze.papers.page import build_page
from phaze.papers.parmesan import MapInputs, parmesan_paper
from phaze.papers.publications import PublishedMaps
from phaze.papers.scores import geometric_mean, mean_factor, rms_factor
from phaze.papers.speed_ups import speed_ups, steps
from phaze.spec.map_study import Maps
from phaze.spec.names import MAP_METHODS
from phaze.tables import Mappings, SearchGaps
from tests.unit.papers.parts import part, parts

MAPS = Maps.parse(
    {
        "graphs": {
            "net": {"label": "Net", "model": "m", "microbatch": 2, "system": "s", "hyper_operators": 8}
        },
        "topologies": {
            "random": {
                "label": "random",
                "seeds": list(range(10)),
                "sizes": [{"kind": "uniform-dist", "devices": 4}],
            }
        },
        "cases": {
            "table": {"graphs": ["net"], "topologies": ["random"], "shapes": [[2, 2]], "show": "topologies"}
        },
    },
    "maps",
)  # fmt: skip
POINT = {
    "graph": "net", "partitioner": "full", "hyper_operators": 8, "stages": 2, "replicas": 2,
    "microbatches": 4, "topology": "random",
}  # fmt: skip
STEPS = dict(zip(MAP_METHODS, (4.0, 5.0, 3.0, 2.0, 12.0, 8.0), strict=True))


def inputs_with(step_s: dict[str, float], bound_s: float = 0.5) -> MapInputs:
    """Return the tables of ten seeds; for seed k the heuristics take k per cent longer."""
    rows = [
        {
            **POINT, "seed": seed, "way": way, "compute_s": 1.0, "samples_per_s": 16 / step,
            **dict.fromkeys(
                ("step_s", "shared_step_s", "held_step_s", "stage_time_s"),
                step * (1 + seed / 100 if way.endswith("map") else 1.0),
            ),
            "counted": way if way in ("p2p", "allreduce") else "exact", "value_s": 1.0, "bound_s": bound_s,
            "proven": False, "by_sizes": way == "p2p", "searched": True, "gave_up": True, "tries": 9,
        }
        for seed in range(10)
        for way, step in step_s.items()
    ]  # fmt: skip
    return MapInputs(MAPS, Mappings.check(pd.DataFrame(rows)))


def test_speed_ups_are_medians_over_seeds() -> None:
    found = speed_ups(steps(inputs_with(STEPS).mappings)).iloc[0]
    assert found["over_consecutive"] == pytest.approx(12 * 1.045 / 2)
    assert found["over_heuristics"] == pytest.approx(8 * 1.045 / 2)
    assert found["searched_over_heuristics"] == pytest.approx(8 * 1.045 / 3)
    assert found["by_sizes_over_consecutive"] == pytest.approx(12 * 1.045 / 4)
    assert found["least_over_heuristics"] == pytest.approx(4.0)
    assert found["seeds"] == 10


def test_a_page_is_made_and_every_check_passes() -> None:
    paper = parmesan_paper(inputs_with(STEPS))
    assert build_page([paper]).failures == []
    assert [*parts(paper)][1:] == ["Speed-ups by topology: table", "Checks"]


@pytest.mark.parametrize(
    ("steps_of", "bound_s", "failed"),
    [
        (STEPS | {"p2p-map": 1.9}, 0.5, "searching is never worse than CS map or p2p map"),
        (STEPS | {"cs-map": 9.0}, 0.5, "uniform_dist: at least five times as fast as CS map"),
    ],
)
def test_a_check_that_fails_is_told(steps_of: dict[str, float], bound_s: float, failed: str) -> None:
    report = build_page([parmesan_paper(inputs_with(steps_of, bound_s))])
    assert [text.split(":")[0] for text in report.failures] == [failed.split(":", maxsplit=1)[0]]


def test_steps_with_shared_ports_and_printed_values_stand_beside_ours() -> None:
    levels = [{"devices": n, "bandwidth_gib_per_s": 1} for n in (2, 4)]
    size = {"kind": "levels", "levels": levels, "shared_port": True}
    links = {"label": "links", "partitioner": "full"}
    case = {
        "graphs": ["net"], "topologies": ["random"], "shapes": [[2, 2]], "show": "partitioners",
        "partitioners": ["full"], "readings": {"links": links, "port": {**links, "judge": "shared-step"}},
    }  # fmt: skip
    maps = {
        **MAPS.model_dump(),
        "topologies": {"random": {"label": "nodes", "sizes": [size]}},
        "cases": {"table": case},
    }
    known = {"over_first": {"net": {"full": {"ours": {"2x2": 7.5}}}}, "title": "", "citation": ""}
    inputs = inputs_with(STEPS)
    by_hand = inputs.mappings["way"].isin(["cs-map", "p2p-map"])
    shared = inputs.mappings["step_s"].where(~by_hand, 2 * inputs.mappings["step_s"])
    mappings = inputs.mappings.assign(shared_step_s=shared)
    report = parmesan_paper(
        replace(
            inputs,
            study=Maps.parse(maps, "maps"),
            mappings=mappings,
            published=PublishedMaps.parse(known, "published"),
        )
    )
    *_, sheet = (block for block in part(report, "Partitions and mappings") if isinstance(block, Sheet))
    assert sheet.rows[0] == ("Net", "full ours", "2x2", "7.5", "6.00", "12.00")


def test_gaps_are_written_and_cases_without_printed_figures_are_not_on_the_page() -> None:
    by_k = {"graphs": ["net"], "topologies": ["random"], "shapes": [[2, 2]], "show": "clusters"}
    cases = {"by-k": by_k, "gaps": {**by_k, "show": "gaps"}}
    row = {
        **POINT,
        "seed": 1,
        "counted": "p2p",
        "proven": True,
        "local_s": 1.1,
        "least_s": 1.0,
        "bound_s": 1.0,
    }
    gaps = SearchGaps.check(pd.DataFrame([row]))
    study = Maps.parse({**MAPS.model_dump(), "cases": cases}, "maps")
    paper = parmesan_paper(replace(inputs_with(STEPS), study=study, search_gaps=gaps))
    assert paper.tables["search-gaps"] == (SearchGaps, gaps)
    assert [*parts(paper)] == ["", "Checks"]


def test_scores_count_too_much_and_too_little_alike() -> None:
    """Rows without printed figures do not count."""
    figures = pd.DataFrame({"ours": [2.0, 4.0, 9.0], "printed": [4.0, 2.0, 0.0]})
    assert mean_factor(figures) == pytest.approx(2.0)
    assert rms_factor(pd.Series([0.5, 2.0, 0.0])) == pytest.approx(2.0)
    assert np.isnan(mean_factor(figures[figures["printed"] == 0]))
    assert geometric_mean(pd.Series([2.0, 8.0])) == pytest.approx(4.0)
    assert np.isnan(geometric_mean(pd.Series([], dtype=float)))


def test_graphs_of_one_case_are_compared_with_no_printed_figure() -> None:
    """The printed speed-ups by topology are of one graph."""
    inputs, table = inputs_with(STEPS), MAPS.cases["table"].model_dump()
    graphs = {name: MAPS.graphs["net"].model_dump() | {"label": name} for name in ("net", "other")}
    study = {**MAPS.model_dump(), "graphs": graphs, "cases": {"table": {**table, "graphs": ["net", "other"]}}}
    both = pd.concat([inputs.mappings, inputs.mappings.assign(graph="other")])
    page = parmesan_paper(replace(inputs, study=Maps.parse(study, "maps"), mappings=Mappings.check(both)))
    assert [*parts(page)] == ["", "Checks"]
    assert set(page.tables["speed-ups"][1]["graph"]) == {"net", "other"}
