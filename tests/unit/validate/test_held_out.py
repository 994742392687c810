"""Generation held out: errors for devices described by public figures only."""

import pytest

from phaze.spec.files import FOLDER, read_mapping
from phaze.spec.measured import PublishedRuns
from phaze.spec.systems import load_device
from tests.held_out import (
    BEFORE,
    EARLIER,
    NEW,
    as_held_out,
    clean_product_errors,
    scheduled_errors,
    summary,
    sustained_clock,
    training_errors,
)

HELD_OUT = PublishedRuns.load().held_out


def test_the_power_law_passes_through_the_devices_that_it_comes_from() -> None:
    """A100 and H100 have their own clocks; more power for a rate allows more of it."""
    for name in (BEFORE, EARLIER):
        assert sustained_clock(name) == pytest.approx(load_device(name).sustained_clock)
    assert sustained_clock("b200") < sustained_clock("gb200") < sustained_clock(EARLIER)


@pytest.mark.parametrize("name", NEW)
def test_no_fitted_figure_of_a_held_out_device_is_read(name: str) -> None:
    """Speeds are those of H100; sizes, clock and HBM those of the data sheet."""
    fields, earlier = as_held_out(name), read_mapping(FOLDER / "devices" / f"{EARLIER}.yaml")
    device = read_mapping(FOLDER / "devices" / f"{name}.yaml")
    assert fields["products"]["bf16"] == earlier["products"]["bf16"] != device["products"]["bf16"]
    assert fields["attention"] == earlier["attention"]
    assert fields["sustained_hbm"] == earlier["sustained_hbm"]
    assert fields["clock_hz"] == device["clock_hz"]


def test_the_sentence_has_the_stored_figures() -> None:
    """Answers on chips print it."""
    trust = PublishedRuns.load().trust
    assert "miss 56 measured dense runs by 6 % in the mean and 20 % at most" in trust
    assert "32 % shorter than 19 measured runs" in trust


@pytest.mark.slow
def test_dense_training_of_the_generation_held_out() -> None:
    """At most 15 % in the mean, on every device and in every precision; the stored figures are these."""
    errors = training_errors()
    assert summary(errors) == HELD_OUT["training"]
    means = errors["error"].abs().groupby([errors["device"], errors["precision"]]).mean()
    assert means.max() < 0.15


@pytest.mark.slow
def test_products_of_mi355x_with_the_constants_of_mi300x() -> None:
    """At most 20 % in the mean; the stored figures are these."""
    assert summary(clean_product_errors()) == HELD_OUT["products"]
    assert HELD_OUT["products"].mean < 0.2


@pytest.mark.slow
def test_the_same_devices_under_a_static_schedule() -> None:
    """The stored figures say by how much chips of architectures are too fast."""
    assert summary(scheduled_errors()) == HELD_OUT["scheduled"]
