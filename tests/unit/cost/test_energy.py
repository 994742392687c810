"""Energy by component."""

from dataclasses import fields, replace

import numpy as np
import pytest

from phaze.cost.designs import Designs
from phaze.cost.mapper.loads import Load
from phaze.cost.operators import energies_of, sram_j_per_byte
from phaze.spec.architecture import EnergyFigures

FIGURES = EnergyFigures(
    mac_j=1.0,
    register_j_per_byte=0.5,
    sram_j_per_byte={1: 2.0, 1024: 64.0},
    hbm_j_per_byte=100.0,
    link_j_per_byte=1000.0,
    leakage_w_per_mm2=1.0,
)
ONE = np.ones(1, dtype=np.int64)
DESIGNS = Designs(
    ids=ONE, tensor_cores=ONE, vector_cores=ONE, rows=ONE, columns=ONE, lanes=ONE, l2_tc_bytes=ONE * 2**10,
    l2_vc_bytes=ONE * 2**10, glb_bytes=ONE * 2**20, words_per_cycle=np.ones(1), clock_hz=np.zeros(1),
    hbm_bandwidth_bytes_per_s=np.zeros(1),
)  # fmt: skip
NOTHING = Load(**{field.name: np.zeros((1, 1)) for field in fields(Load)})
TEN = np.full((1, 1), 10.0)


def parts(load: Load) -> dict[str, float]:
    """Return the components that are not zero."""
    found = energies_of(load, DESIGNS, 2, FIGURES)
    return {name: float(value[0, 0]) for name, value in found.items() if value[0, 0]}


def test_an_idle_design_needs_no_dynamic_energy() -> None:
    """Every component is present with 0."""
    assert set(energies_of(NOTHING, DESIGNS, 2, FIGURES)) == {"mac", "register", "l2", "glb", "hbm", "link"}
    assert parts(NOTHING) == {}


def test_an_operation_takes_its_unit_and_four_registers() -> None:
    """Ten operations at 1 J, and four words of two bytes each at 0.5 J per byte."""
    assert parts(replace(NOTHING, operations=TEN)) == {"mac": 10, "register": 10 * 4 * 2 * 0.5}


def test_a_word_is_paid_on_both_sides_of_a_buffer_s_edge() -> None:
    """Words between L2 and the global buffer count in both, words to the array in L2 only."""
    assert parts(replace(NOTHING, array_words=TEN)) == {"l2": 10 * 2 * 2.0}
    assert parts(replace(NOTHING, glb_words=TEN)) == pytest.approx({"l2": 10 * 2 * 2.0, "glb": 10 * 2 * 64.0})


def test_words_of_vector_cores_pass_their_own_l2_twice() -> None:
    """From the global buffer into L2, and from there to the lanes."""
    found = parts(replace(NOTHING, glb_words=TEN, streamed_words=TEN))
    assert found == pytest.approx({"l2": 2 * 10 * 2 * 2.0, "glb": 10 * 2 * 64.0})


def test_hbm_and_links_are_paid_by_the_byte() -> None:
    """A byte from HBM is also written into the global buffer."""
    assert parts(replace(NOTHING, hbm_bytes=TEN)) == pytest.approx({"hbm": 1000, "glb": 640})
    assert parts(replace(NOTHING, link_bytes=TEN)) == {"link": 10_000}


def test_sram_energy_is_log_linear_in_capacity() -> None:
    """Log-linear between figures; outside, that of the nearest figure, as larger buffers consist of banks."""
    sizes = np.array([512, 2**10, 2**15, 2**20, 2**27])
    found = sram_j_per_byte(sizes, FIGURES.sram_j_per_byte)
    assert found == pytest.approx([2.0, 2.0, np.sqrt(2.0 * 64.0), 64.0, 64.0])
