"""Layers of the default study on randomly drawn architectures, as in the schedule stage."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phaze.cost.designs import with_own_designs
from phaze.cost.operators import estimate_operators
from phaze.cost.space import area_um2, enumerate_grid
from phaze.layout import Layout
from phaze.schedule.graphs import ScheduledLayer
from phaze.schedule.stage import read_cases
from phaze.search.cosearch import Terms
from phaze.spec.config import Settings, load_settings
from phaze.spec.settings import ExtractSettings
from phaze.workload.models import extract_workload
from tests.studies import study_settings

CONFIG = Path(__file__).resolve().parents[2] / "config"
SCENARIO = "tpu-v4-pod"


def draw_layers(backward: str, points: int, architectures: int, seed: int = 0) -> list[ScheduledLayer]:
    """Return every distinct pass of every layer for some models, TMP widths and microbatches, each on some
    architectures of the whole grid.
    """
    settings = load_settings(study_settings("phaze-space"), CONFIG)
    every = [(model, layout) for model in settings.study.models for layout in settings.layouts(model)]
    rng = np.random.default_rng(seed)
    chosen = rng.choice(len(every), min(points, len(every)), replace=False)
    found = [layer for k in chosen for layer in _layers_of(settings, *every[k], backward, architectures, rng)]
    return list({_content(layer): layer for layer in found}.values())


def _content(layer: ScheduledLayer) -> tuple[object, ...]:
    """Return all that the schedule of a layer depends on."""
    latencies = layer.latency_s.tobytes(), layer.latency_all_s.tobytes()
    return layer.core, layer.edges, layer.num_tc, layer.num_vc, *latencies


def _layers_of(
    settings: Settings,
    model: str,
    layout: Layout,
    backward: str,
    architectures: int,
    rng: np.random.Generator,
) -> list[ScheduledLayer]:
    figures, grid = settings.technology.area_um2, settings.study.architectures.grid
    assert grid is not None
    limit = area_um2(settings.architectures["tpu-v4"], figures)
    chips = enumerate_grid(grid, figures, limit, "large-buffer")
    chips = with_own_designs(chips.iloc[np.sort(rng.choice(len(chips), architectures, replace=False))])
    found = extract_workload(
        settings.models[model],
        settings.workload(model).sequence,
        layout,
        ExtractSettings.model_validate({"backward": backward}),
    )
    terms = Terms(
        scenario=settings.scenarios[SCENARIO],
        training=settings.study.training,
        technology=settings.technology,
    )
    estimates = estimate_operators(
        found.tables["parts"], chips, terms.hardware, terms.technology, terms.estimate
    )
    cases = read_cases(
        found.tables["operators"], found.tables["edges"], estimates, chips, overlap_communication=False
    )
    return [case.layer for case in cases]
