"""Estimates of works on designs."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.cost.mapper.loads import Hardware
from phaze.cost.network.network import BOTH_DIRECTIONS, Flat
from phaze.cost.operators import estimate_operators
from phaze.cost.space import describe_named, enumerate_grid
from phaze.layout import Layout
from phaze.spec.architecture import Architecture, Grid, load_technology
from phaze.spec.config import load_architecture
from phaze.spec.models import AnyModel, load_model_named
from phaze.spec.settings import EstimateSettings, ExtractSettings
from phaze.tables import Parts
from phaze.workload.lower.fusion import fuse
from phaze.workload.models import build_graph, extract_workload

CONFIG = Path(__file__).resolve().parents[3] / "config"
TECHNOLOGY = load_technology("22nm", CONFIG)
PAPER = Hardware(1.05e9, 1.2e12, Flat(2.0**32, BOTH_DIRECTIONS), 2)
COMPONENTS = ("mac", "register", "l2", "glb", "hbm", "link")
PAPERS = yaml.safe_load((CONFIG / "studies/phaze-paper.yaml").read_text())
PRINTED = EstimateSettings.parse(PAPERS["estimate"], "phaze-paper.yaml")
"""Settings of the paper."""
TENSOR = 4
ELEMENTS = 512 * 1024


def part(work: int, core: str, kind: str, **values: object) -> dict[str, object]:
    """Return a row of table parts."""
    empty = {"role": "forward", "batch": 0, "m": 0, "k": 0, "n": 0, "elements": 0, "streamed_bytes": 0.0}
    key = {"model": "toy", "layout": f"tp{TENSOR}-b1", "work": work, "part": 0}
    return {
        **key,
        "core": core,
        "kind": kind,
        "network_bytes": 0.0,
        "unrolled": 0,
        "axis": "",
        **empty,
        **values,
    }


def product(work: int, core: str, batch: int, m: int, k: int, n: int, number: int = 0) -> dict[str, object]:
    """Return a matrix multiplication."""
    return part(work, core, "matmul", batch=batch, m=m, k=k, n=n, part=number)


def frame(*rows: dict[str, object]) -> pd.DataFrame:
    """Return table parts."""
    return Parts.check(pd.DataFrame(rows))


LINEAR, ATTENTION, NORM, REDUCE, PAIRED = range(5)
PARTS = frame(
    product(LINEAR, "tensor", 1, 512, 1024, 3072),
    product(ATTENTION, "fused", 16, 512, 64, 512),
    part(ATTENTION, "fused", "softmax", part=1, elements=16 * 512 * 512, streamed_bytes=2.0 * 16 * 512 * 512),
    part(NORM, "vector", "layer_norm", elements=ELEMENTS, streamed_bytes=4.0 * ELEMENTS),
    part(
        REDUCE, "network", "all_reduce", elements=ELEMENTS, streamed_bytes=4.0 * ELEMENTS,
        network_bytes=2.0 * ELEMENTS,
    ),
    part(PAIRED, "fused", "gelu", role="backward", elements=4096 * 512, streamed_bytes=4.0 * 4096 * 512),
    product(PAIRED, "fused", 1, 512, 4096, 1024, 1),
    product(PAIRED, "fused", 1, 1024, 512, 4096, 2),
)  # fmt: skip


BIASED = frame(
    product(0, "fused", 1, 4096, 1024, 4096),
    part(0, "fused", "add", part=1, elements=4096 * 4096, streamed_bytes=2.0 * 4096),
)


def chip(**sizes: float) -> Architecture:
    """Return TPUv4 with other sizes."""
    return load_architecture("tpu-v4", CONFIG).model_copy(update=sizes)


def estimated(
    architecture: Architecture,
    parts: pd.DataFrame = PARTS,
    hardware: Hardware = PAPER,
    given: EstimateSettings = PRINTED,
) -> pd.DataFrame:
    """Return the estimates of parts on one architecture, by work."""
    table = describe_named([architecture], TECHNOLOGY.area_um2, "named")
    found = estimate_operators(parts, table, hardware, TECHNOLOGY, given)
    return found.set_index("work")


@cache
def tpu() -> pd.DataFrame:
    """Return the estimates on TPUv4."""
    return estimated(chip())


def test_every_work_is_estimated_on_the_designs_of_its_core_type() -> None:
    """In a space, a work has one row per design that can run it."""
    grid = Grid(
        num_tc=(1, 4), num_vc=(1, 4), pe_x=(16, 64), pe_y=(64,), glb_mib=(2, 8), minimum_area_share=None
    )
    space = enumerate_grid(grid, TECHNOLOGY.area_um2, 1e9, "small-buffer")
    found = estimate_operators(PARTS, space, PAPER, TECHNOLOGY, PRINTED)
    assert len(space) == 16
    for core, column in {
        "tensor": "tensor",
        "fused": "fused",
        "vector": "vector",
        "network": "vector",
    }.items():
        works = PARTS.loc[PARTS["core"] == core, "work"].unique()
        designs = set(space[f"{column}_design"])
        assert all(set(found.loc[found["work"] == work, "design"]) == designs for work in works)


def test_a_space_and_a_single_architecture_agree() -> None:
    """An estimate of a design does not depend on other designs of its shard."""
    grid = Grid(
        num_tc=(1, 8), num_vc=(2, 16), pe_x=(32, 128), pe_y=(128,), glb_mib=(16, 128), minimum_area_share=None
    )
    space = enumerate_grid(grid, TECHNOLOGY.area_um2, 1e9, "large-buffer")
    row = space.set_index("architecture").loc["tc8-vc2-128x128-glb128"]
    designs = row[["tensor_design", "vector_design", "fused_design"]].tolist()
    found = estimate_operators(PARTS, space, PAPER, TECHNOLOGY, PRINTED)
    mine = found[found["design"].isin(designs)].set_index("work")
    assert len(mine) == len(tpu())
    pd.testing.assert_frame_equal(mine.drop(columns="design"), tpu().drop(columns="design"))


def test_a_chip_with_its_own_clock_and_hbm_is_as_fast_as_on_a_cluster_that_has_these() -> None:
    """Also beside others: designs that differ in them alone have estimates of their own."""
    own = chip(clock_hz=2.1e9, hbm_bandwidth_bytes_per_s=2.4e12)
    times = ["latency_s", "latency_all_s"]
    like_it = estimated(chip(), hardware=replace(PAPER, clock_hz=2.1e9, hbm_bandwidth_bytes_per_s=2.4e12))
    pd.testing.assert_frame_equal(estimated(own)[times], like_it[times])
    assert (estimated(own)["latency_all_s"] < tpu()["latency_all_s"]).any()
    both = describe_named([chip(), own.model_copy(update={"name": "own"})], TECHNOLOGY.area_um2, "named")
    assert all(both[f"{core}_design"].nunique() == 2 for core in ("tensor", "vector", "fused"))


def test_a_product_never_beats_the_peak_nor_the_bandwidth() -> None:
    """One core has an eighth of the peak."""
    row = tpu().loc[LINEAR]
    macs, words = 512 * 1024 * 3072, 512 * 1024 + 1024 * 3072 + 512 * 3072
    assert row["latency_s"] >= macs / 128**2 / PAPER.clock_hz
    assert row["latency_all_s"] >= macs / 128**2 / 8 / PAPER.clock_hz
    assert row["latency_all_s"] >= words * 2 / PAPER.hbm_bandwidth_bytes_per_s


def test_hbm_binds_a_thin_product_and_a_narrow_global_buffer_any() -> None:
    """A vector times a matrix takes the HBM time of the matrix; other products that of their words."""
    row = estimated(chip(), frame(product(0, "tensor", 1, 1, 4096, 4096))).loc[0]
    seconds = (4096 * 4096 + 2 * 4096) * 2 / PAPER.hbm_bandwidth_bytes_per_s
    assert row["limit_all"] == "hbm"
    assert row["latency_all_s"] == pytest.approx(seconds)
    row = estimated(chip(glb_words_per_cycle=4.0), frame(product(0, "tensor", 1, 512, 512, 512))).loc[0]
    assert row["limit"] == "global_buffer"
    assert row["latency_s"] >= 3 * 512 * 512 / 4 / PAPER.clock_hz


def test_compute_scales_with_cores_and_hbm_does_not() -> None:
    """ℓ̂ is ℓ divided by the cores only if no shared resource binds."""
    wide, thin = (frame(product(0, "tensor", 1, m, 4096, 4096)) for m in (4096, 8))
    row = estimated(chip(), wide).loc[0]
    assert row["limit"] == row["limit_all"] == "compute"
    assert row["latency_s"] / row["latency_all_s"] == pytest.approx(8, rel=0.1)
    few, many = (estimated(chip(num_tc=cores), thin).loc[0] for cores in (8, 64))
    assert few["limit_all"] == many["limit_all"] == "hbm"
    assert few["latency_all_s"] == many["latency_all_s"]


def test_a_fused_work_uses_all_vector_cores() -> None:
    """If vector lanes bind, additional vector cores help in proportion."""
    few, many = (chip(num_vc=cores, pe_vc=32) for cores in (2, 64))
    slow, fast = (estimated(a, BIASED, given=EstimateSettings()).loc[0] for a in (few, many))
    assert slow["limit_all"] == "vector"
    assert fast["latency_all_s"] < slow["latency_all_s"]
    assert fast["latency_s"] == slow["latency_s"], "on one core it has one pair"


def test_vector_works_by_hand() -> None:
    """A layer norm of one cycle per element: 128 lanes on one core, 256 on both."""
    row = tpu().loc[NORM]
    assert row["latency_s"] == pytest.approx(ELEMENTS / 128 / PAPER.clock_hz)
    assert row["latency_all_s"] == pytest.approx(ELEMENTS / 256 / PAPER.clock_hz)
    assert row["limit"] == row["limit_all"] == "vector"


def test_many_lanes_wait_for_what_they_stream() -> None:
    """With 512 cores the layer norm takes the time of its bytes, or of its words with a narrow buffer."""
    row = estimated(chip(num_vc=512)).loc[NORM]
    assert (row["limit_all"], row["latency_all_s"]) == ("hbm", pytest.approx(4 * ELEMENTS / 1.2e12))
    row = estimated(chip(num_vc=512, glb_words_per_cycle=16.0)).loc[NORM]
    words_s = 2 * ELEMENTS / 16 / PAPER.clock_hz
    assert (row["limit_all"], row["latency_all_s"]) == ("global_buffer", pytest.approx(words_s))


def test_a_collective_is_a_ring_and_then_its_reduction() -> None:
    """4 (t − 1)/t · bytes / bandwidth, then (t − 1)/t additions per element on all vector cores (C.2)."""
    row = tpu().loc[REDUCE]
    ring = 4 * 3 / 4 * 2 * ELEMENTS / 2**32
    reduction = np.ceil(0.75 * ELEMENTS / 256) / PAPER.clock_hz
    assert row["latency_s"] == row["latency_all_s"] == pytest.approx(ring + reduction)
    assert row["limit"] == "network"
    assert row["link_j"] == pytest.approx(2 * 0.75 * 2 * ELEMENTS * TECHNOLOGY.energy.link_j_per_byte)


def test_the_slower_of_vector_and_tensor_core_binds_a_fused_work() -> None:
    """Softmax takes ten cycles per element, its product 64 multiply-accumulates on 16,384 units."""
    row = tpu().loc[ATTENTION]
    assert row["limit"] == row["limit_all"] == "vector"
    assert row["latency_all_s"] == pytest.approx(10 * 16 * 512 * 512 / 256 / PAPER.clock_hz)
    many = estimated(chip(num_vc=4096, num_tc=4096)).loc[ATTENTION]
    assert many["limit_all"] != "vector"


def test_paired_fused_works_run_on_as_many_tensor_as_vector_cores() -> None:
    """With fusion paired, additional cores of one type do not help."""
    base = tpu().loc[[ATTENTION, PAIRED]]
    for sizes in ({"num_tc": 16}, {"num_tc": 2}):
        same = estimated(chip(**sizes)).loc[[ATTENTION, PAIRED]]
        pd.testing.assert_frame_equal(same.drop(columns="design"), base.drop(columns="design"))


Place = tuple[str, str, int]


def test_a_fused_work_leaves_no_matrix_unit_idle() -> None:
    """On TPUv4 with its real lanes, a product with a bias takes the time of all eight matrix units.

    Paired with two vector units it takes four times as long.
    """
    built = chip(pe_vc=1024)
    alone = frame(product(0, "tensor", 1, 4096, 1024, 4096))
    found = estimated(built, BIASED, given=EstimateSettings()).loc[0]
    expected = estimated(built, alone, given=EstimateSettings()).loc[0, "latency_all_s"]
    assert found["latency_all_s"] == pytest.approx(expected, rel=1e-3)
    paired = estimated(built, BIASED, given=EstimateSettings(fusion="paired")).loc[0, "latency_all_s"]
    assert paired == pytest.approx(4 * expected, rel=0.02)


def unfused_s(model: AnyModel, architecture: Architecture, given: EstimateSettings) -> dict[Place, float]:
    """Return the sequential time of each operator's primitives on all cores, each with its own traffic, by
    layer, direction and number.
    """
    alone = extract_workload(model, 256, Layout(microbatch=2), ExtractSettings(fusion=False))
    seconds = estimated(architecture, alone.tables["parts"], given=given)["latency_all_s"]
    rows = alone.tables["operators"][alone.tables["operators"]["work"] >= 0]
    places = zip(rows["layer"], rows["direction"], rows["operator"], strict=True)
    of_place = dict(zip(places, seconds[rows["work"]], strict=True))
    found = {}
    for layer in build_graph(model, 256, Layout(microbatch=2), 2).layers:
        groups, last = fuse(layer, after_reductions=True), len(layer.primitives) - 1
        for number, group in enumerate(groups):
            for direction, place in (("forward", number), ("backward", len(groups) - 1 - number)):
                members = group if direction == "forward" else [last - i for i in group]
                each = (of_place.get((layer.name, direction, i), 0.0) for i in members)
                found[layer.name, direction, place] = sum(each)
    return found


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gpt2", {}),
        ("bert-base", {"pe_vc": 1024}),
        ("llama2-7b", {"num_tc": 2, "num_vc": 64}),
        ("opt-350m", {"glb_words_per_cycle": 64.0}),
    ],
)
def test_a_fused_work_on_all_cores_is_never_slower_than_its_parts_apart(
    name: str, sizes: dict[str, float]
) -> None:
    """So the better of fused and unfused on all cores is fused, for every operator forward and backward."""
    model, architecture = load_model_named(name, CONFIG), chip(**sizes)
    fused = extract_workload(model, 256, Layout(microbatch=2), ExtractSettings())
    operators = fused.tables["operators"][fused.tables["operators"]["core"] == "fused"]
    places = list(zip(operators["layer"], operators["direction"], operators["operator"], strict=True))
    assert len(places) >= 10
    for chosen in (EstimateSettings(), EstimateSettings(preload=False)):
        together = estimated(architecture, fused.tables["parts"], given=chosen)["latency_all_s"]
        apart = unfused_s(model, architecture, chosen)
        for place, work in zip(places, operators["work"], strict=True):
            assert together[work] <= apart[place] * (1 + 1e-12)


def test_preloading_hides_the_fillings_of_arrays() -> None:
    """Streams of 512 gain a third, and no product on eight cores gets slower; long streams gain less."""
    short, long = (frame(product(0, "tensor", 1, m, 512, 512)) for m in (512, 65536))
    for parts, gain in ((short, 4 / 3), (long, 1.0)):
        plain, ahead = (
            estimated(chip(), parts, given=EstimateSettings(preload=preload)).loc[0]
            for preload in (False, True)
        )
        assert plain["latency_s"] > gain * ahead["latency_s"]
        assert plain["latency_all_s"] >= ahead["latency_all_s"]


def test_the_products_of_a_paired_work_run_one_after_the_other() -> None:
    """A backward work takes at least as long as both of its products alone."""
    alone = [frame(product(0, "fused", 1, *shape)) for shape in ((512, 4096, 1024), (1024, 512, 4096))]
    sum_s = sum(estimated(chip(), parts).loc[0, "latency_all_s"] for parts in alone)
    assert tpu().loc[PAIRED, "latency_all_s"] >= sum_s * (1 - 1e-12)


def test_what_vector_parts_stream_counts_against_hbm_and_the_global_buffer() -> None:
    """A fused work with much streamed traffic takes the time of that traffic."""
    streamed = part(0, "fused", "add", part=1, elements=1, streamed_bytes=1e9)
    parts = frame(product(0, "fused", 1, 64, 64, 64), streamed)
    row = estimated(chip(), parts).loc[0]
    bytes_of_product = 3 * 64 * 64 * 2
    assert row["limit"] == "hbm"
    assert row["latency_s"] == pytest.approx((1e9 + bytes_of_product) / 1.2e12)
    row = estimated(chip(glb_words_per_cycle=8.0), parts).loc[0]
    assert row["limit"] == "global_buffer"
    assert row["latency_s"] >= 5e8 / 8 / PAPER.clock_hz


def test_energy_of_the_multiply_accumulates_is_that_of_the_work() -> None:
    """A product has the same number under every mapping."""
    row = tpu().loc[LINEAR]
    assert row["mac_j"] == row["mac_all_j"] == pytest.approx(512 * 1024 * 3072 * TECHNOLOGY.energy.mac_j)
    hbm = (512 * 1024 + 1024 * 3072 + 512 * 3072) * 2 * TECHNOLOGY.energy.hbm_j_per_byte
    assert row["hbm_j"] == pytest.approx(hbm)
    assert row["hbm_bytes"] * TECHNOLOGY.energy.hbm_j_per_byte == pytest.approx(row["hbm_j"])


def test_the_energy_breakdown_sums_to_the_total() -> None:
    """Doubling every figure doubles the sum of the components, and each figure affects only its own."""
    table = describe_named([chip()], TECHNOLOGY.area_um2, "named")

    def joules(**changes: object) -> pd.DataFrame:
        technology = TECHNOLOGY.model_copy(update={"energy": TECHNOLOGY.energy.model_copy(update=changes)})
        found = estimate_operators(PARTS, table, PAPER, technology, PRINTED)
        return found[[f"{c}{suffix}_j" for suffix in ("", "_all") for c in COMPONENTS]]

    base, energy = joules(), TECHNOLOGY.energy
    figures = {name: value for name, value in energy if isinstance(value, float)}
    doubled = {name: 2 * value for name, value in figures.items()}
    sram = {size: 2 * value for size, value in energy.sram_j_per_byte.items()}
    assert joules(**doubled, sram_j_per_byte=sram).sum(axis=1).to_numpy() == pytest.approx(
        2 * base.sum(axis=1).to_numpy()
    )
    for component, figure in (("mac", "mac_j"), ("hbm", "hbm_j_per_byte"), ("link", "link_j_per_byte")):
        changed = joules(**{figure: 2 * figures[figure]})
        others = [name for name in base if not name.startswith(component)]
        pd.testing.assert_frame_equal(changed[others], base[others])
        assert changed[f"{component}_j"].to_numpy() == pytest.approx(2 * base[f"{component}_j"].to_numpy())
    pd.testing.assert_frame_equal(joules(leakage_w_per_mm2=99.0), base)


def test_an_element_of_another_size_changes_words() -> None:
    """Four bytes an element take twice the bandwidth of two."""
    thin = frame(product(0, "tensor", 1, 1, 4096, 4096))
    found = estimated(chip(), thin, replace(PAPER, bytes_per_element=4)).loc[0, "latency_all_s"]
    assert found == pytest.approx(2 * estimated(chip(), thin).loc[0, "latency_all_s"])


def test_vector_cycles_of_a_study_replace_the_table_s() -> None:
    """An unknown operation is refused."""
    table = describe_named([chip()], TECHNOLOGY.area_um2, "named")
    changed = {**PRINTED.vector_cycles, "forward.layer_norm": 5.0}
    overrides = PRINTED.model_copy(update={"vector_cycles": changed})
    found = estimate_operators(PARTS, table, PAPER, TECHNOLOGY, overrides).set_index("work")
    assert found.loc[NORM, "latency_s"] == pytest.approx(5 * tpu().loc[NORM, "latency_s"])
    unknown = EstimateSettings(vector_cycles={"sideways.gelu": 1.0})
    with pytest.raises(PhazeError, match="sideways"):
        estimate_operators(PARTS, table, PAPER, TECHNOLOGY, unknown)


def test_nothing_to_estimate_is_an_empty_table() -> None:
    """Without designs, and without works."""
    table = describe_named([chip()], TECHNOLOGY.area_um2, "named")
    assert len(estimate_operators(PARTS.iloc[:0], table, PAPER, TECHNOLOGY, PRINTED)) == 0
    assert len(estimate_operators(PARTS, table.iloc[:0], PAPER, TECHNOLOGY, PRINTED)) == 0


def test_a_study_may_set_the_factor_of_an_all_reduce() -> None:
    """A factor of 2 instead of the system's 4 halves the ring, and changes nothing else."""
    found = estimated(chip(), given=PRINTED.model_copy(update={"all_reduce_factor": 2.0}))
    ring = 4 * 3 / 4 * 2 * ELEMENTS / 2**32
    assert found.loc[REDUCE, "latency_all_s"] == pytest.approx(tpu().loc[REDUCE, "latency_all_s"] - ring / 2)
    pd.testing.assert_frame_equal(found.drop(REDUCE), tpu().drop(REDUCE))


def test_a_study_may_give_every_global_buffer_the_same_words_a_cycle() -> None:
    """As if the architecture had this bandwidth; a product on eight cores waits for its words."""
    found = estimated(chip(), given=PRINTED.model_copy(update={"words_per_cycle": 256.0}))
    pd.testing.assert_frame_equal(found, estimated(chip(glb_words_per_cycle=256.0)))
    assert found.loc[LINEAR, "latency_all_s"] > tpu().loc[LINEAR, "latency_all_s"]


def test_vector_operations_without_traffic_take_their_arithmetic() -> None:
    """With its traffic, a norm is bound by HBM; without, by its lanes, for the same number of cycles."""
    found = estimated(chip(num_vc=64), given=PRINTED.model_copy(update={"vector_traffic": False}))
    with_traffic = estimated(chip(num_vc=64))
    assert (with_traffic.loc[NORM, "limit_all"], found.loc[NORM, "limit_all"]) == ("hbm", "vector")
    cycles = PRINTED.vector_cycles["forward.layer_norm"] * np.ceil(ELEMENTS / (64 * 128))
    assert found.loc[NORM, "latency_all_s"] == pytest.approx(cycles / PAPER.clock_hz)
    assert found.loc[NORM, "hbm_j"] == 0.0


def test_sequence_parallelism_sends_no_more_than_the_all_reduces_that_it_replaces() -> None:
    """A reduce-scatter and an all-gather together take an all-reduce's time and bytes, and only the first one
    adds.
    """
    kinds = ("all_reduce", "reduce_scatter", "all_gather")
    moved = {"elements": ELEMENTS, "network_bytes": 2.0 * ELEMENTS}
    found = estimated(chip(), frame(*(part(i, "network", kind, **moved) for i, kind in enumerate(kinds))))
    whole, *halves = found["link_j"]
    assert halves == [whole / 2] * 2
    assert found["mac_j"].tolist() == [found["mac_j"][0], found["mac_j"][0], 0.0]
    alone = estimated(chip(), hardware=replace(PAPER, network=Flat(1e30, BOTH_DIRECTIONS)), parts=frame(*(
        part(i, "network", kind, **moved) for i, kind in enumerate(kinds))))  # fmt: skip
    network = (found["latency_all_s"] - alone["latency_all_s"]).tolist()
    assert network[1:] == pytest.approx([network[0] / 2] * 2)


sizes = st.integers(1, 2000)


@st.composite
def fused_works(draw: st.DrawFn) -> pd.DataFrame:
    """Draw a fused work of one or two products and a vector part, and a collective."""
    rows = [product(0, "fused", draw(st.integers(1, 20)), draw(sizes), draw(sizes), draw(sizes), i)
            for i in range(draw(st.integers(1, 2)))]  # fmt: skip
    streamed = draw(st.sampled_from([0.0, 1e4, 1e8]))
    elements = draw(st.integers(1, 10**7))
    tail = part(0, "fused", "add", part=9, elements=elements, streamed_bytes=streamed)
    return frame(
        *rows, tail, part(1, "network", "all_reduce", elements=elements, network_bytes=2.0 * elements)
    )


@settings(max_examples=8)
@given(fused_works(), st.integers(1, 64), st.integers(1, 64), st.sampled_from([2, 8, 64]), st.floats(1, 8))
def test_more_of_anything_is_never_slower(
    parts: pd.DataFrame, cores: int, more: int, width: int, factor: float
) -> None:
    """Cores, buffers and every bandwidth, each alone, for fused works and collectives."""
    base = {"num_tc": cores, "num_vc": cores, "pe_x": width, "pe_y": width, "glb_mib": 0.5, "l2_tc_kib": 1.0,
            "glb_words_per_cycle": 64.0, "pe_vc": width}  # fmt: skip
    slow = estimated(chip(**base), parts)
    faster = [
        estimated(chip(**{**base, "num_tc": cores + more, "num_vc": cores + more}), parts),
        estimated(chip(**{**base, "glb_mib": 0.5 * factor}), parts),
        estimated(chip(**{**base, "l2_tc_kib": factor}), parts),
        estimated(chip(**{**base, "glb_words_per_cycle": 64.0 * factor}), parts),
        estimated(chip(**base), parts, replace(PAPER, hbm_bandwidth_bytes_per_s=1.2e12 * factor)),
        estimated(chip(**base), parts, replace(PAPER, network=Flat(2.0**32 * factor, BOTH_DIRECTIONS))),
        estimated(chip(**base), parts, replace(PAPER, clock_hz=1.05e9 * factor)),
    ]
    for fast in faster:
        assert (fast["latency_all_s"] <= slow["latency_all_s"] * (1 + 1e-12)).all()
        assert (fast["latency_all_s"] <= fast["latency_s"]).all()
