"""A reduced study: small models at two TMP widths, hundreds of architectures, scarce memory.

Three are chains of equal blocks, two have blocks of two kinds under one embedding and head.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pandas as pd
import pytest

from phaze.base.store import Store
from phaze.certify.stage import CertificateTerms, SliceTables
from phaze.cost.operators import estimate_operators
from phaze.cost.space import enumerate_grid
from phaze.formulas.phaze.model import place_model
from phaze.formulas.phaze.point import Conditions
from phaze.layout import Layout, layouts_of
from phaze.schedule.stage import schedule_layers
from phaze.search.cosearch import Subject, extract_subject
from phaze.search.cosearch import Terms as Given
from phaze.search.stage import screen_architectures
from phaze.spec.architecture import Grid, load_technology
from phaze.spec.counts import TokenFlops
from phaze.spec.model import Model
from phaze.spec.settings import ExtractSettings, ScheduleSettings, ScreenSettings, Training
from phaze.spec.system import Scenario
from phaze.workload.models import extract_workload
from phaze.workload.primitives import LayerRun
from phaze.workload.workload import Workload
from tests.effort import if_every

SHAPES = {"wide": (4, 512), "deep": (10, 256), "odd": (7, 384)}
"""Layers and hidden size."""
ORDERS = {
    "alternating": (LayerRun("embedding"), *4 * (LayerRun("block"), LayerRun("wide")), LayerRun("head")),
    "narrow-first": (LayerRun("embedding"), LayerRun("block", 3), LayerRun("wide", 4), LayerRun("head")),
}
"""Block runs of the models with two kinds of blocks."""
MIXED = ["alternating", pytest.param("narrow-first", marks=if_every)]
"""Parameters of tests of models with two kinds of blocks."""
LIMIT_UM2 = 60e6
SMALL, LARGE = 0.0125, 0.25
"""HBM sizes in GiB: the models fit the small one only with recomputation, TMP or more stages."""
SHARDS = {"small": (2.0,), "large": (32.0,)}


def model(name: str, layers: int, hidden: int, feed_forward: int) -> Model:
    return Model(
        name=name, layers=layers, hidden=hidden, heads=4, feed_forward=feed_forward, vocabulary=2048,
        positions="learned", position_count=128, activation="gelu",
    )  # fmt: skip


def mixed(name: str, layout: Layout) -> Workload:
    """Return a model with blocks of two widths of the feed-forward network, in the order of `ORDERS`."""
    narrow, wide = (
        extract_workload(model(name, 1, 256, width), 128, layout, ExtractSettings()) for width in (512, 1024)
    )
    embedding, block, head = narrow.layers
    layers = embedding, block, replace(wide.layer("block"), name="wide"), head
    return replace(narrow, layers=layers, runs=ORDERS[name])


@cache
def subject(name: str) -> Subject:
    layouts = layouts_of((1, 2), (2,))
    if name in ORDERS:
        return Subject(
            tuple(mixed(name, layout) for layout in layouts),
            sequence=128,
            flops_per_token=TokenFlops(needed=5e6, paper=6e6),
        )
    layers, hidden = SHAPES[name]
    return extract_subject(model(name, layers, hidden, 4 * hidden), 128, layouts, ExtractSettings())


@cache
def given() -> Given:
    """Return a cluster of eight devices with scarce memory."""
    return Given(
        scenario=Scenario(devices=8, global_batch=32),
        training=Training(hbm_gib=(SMALL, LARGE), microbatches=(2,)),
        technology=load_technology("22nm"),
        schedule=ScheduleSettings(solver=("highs",), node_limit=20),
    )


def terms() -> CertificateTerms:
    return CertificateTerms(given().scenario, given().training, LIMIT_UM2)


@cache
def shard(name: str) -> pd.DataFrame:
    grid = Grid(
        num_tc=(1, 2, 4, 8), num_vc=(1, 2, 4, 8), pe_x=(16, 32, 64), pe_y=(16, 64), glb_mib=SHARDS[name],
        minimum_area_share=None,
    )  # fmt: skip
    return enumerate_grid(grid, given().technology.area_um2, LIMIT_UM2, name)


@cache
def architectures() -> pd.DataFrame:
    return pd.concat([shard(name) for name in SHARDS], ignore_index=True)


@dataclass(frozen=True)
class Results:
    """Results of the stages for a model, as in the workflow: point by point and shard by shard."""

    slices: tuple[SliceTables, ...]
    screens: tuple[pd.DataFrame, ...]
    placements: pd.DataFrame
    solves: pd.DataFrame


@cache
def results(name: str) -> Results:
    model, asked = subject(name), given()
    settings = ScreenSettings(best=3)
    conditions = Conditions(
        asked.scenario, asked.training, asked.technology.energy, sequence=model.sequence,
        flops_per_token=model.flops_per_token,
    )  # fmt: skip
    slices, screens, placements, solves = [], [], [], []
    for point in model.points:
        for chips in map(shard, SHARDS):
            estimates = estimate_operators(
                point.tables["parts"], chips, asked.hardware, asked.technology, asked.estimate
            )
            one = SliceTables(
                point.tables["operators"], point.tables["edges"], point.tables["layers"], estimates, chips
            )
            screen = screen_architectures(
                one.operators, one.edges, one.layers, model.graph, estimates, chips, asked.scenario,
                asked.training, settings, asked.technology.energy,
            )  # fmt: skip
            solved, _ = schedule_layers(
                one.operators, one.edges, estimates, chips, screen, asked.schedule, Store()
            )
            placed, _ = place_model(one.layers, model.graph, solved, chips, screen, conditions)
            for found, frame in ((slices, one), (screens, screen), (placements, placed), (solves, solved)):
                found.append(frame)
    return Results(tuple(slices), tuple(screens), pd.concat(placements), pd.concat(solves))
