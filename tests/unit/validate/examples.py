"""Small runs on small machines."""

from __future__ import annotations

from dataclasses import fields, replace

from hypothesis import strategies as st

from phaze.base.errors import PhazeError
from phaze.cost.network.network import Levels
from phaze.layout import Layout
from phaze.plan.machines import load_machine
from phaze.plan.plan import Machine
from phaze.plan.pricing.runs import Run

SMALL = Run(
    hidden=1024,
    heads=16,
    layers=8,
    seq=512,
    vocab=50304,
    gpus=16,
    global_batch=64,
    layout=Layout(tp=2, pp=2, dp=4, microbatch=2),
)


def changed(run: Run, **changes: object) -> Run:
    """Return a run with changed values, including those of its layout."""
    inner = {field.name: changes.pop(field.name) for field in fields(Layout) if field.name in changes}
    return replace(run, layout=replace(run.layout, **inner), **changes)  # type: ignore[arg-type]


def machine() -> Machine:
    """Return the A100 cluster of SC 2021."""
    return load_machine("a100-selene")


def ideal_network(one: Machine) -> Machine:
    """Return the machine with a network without noticeable times."""
    assert isinstance(one.network, Levels)
    tiers = tuple(
        tier._replace(bandwidth_bytes_per_s=1e30, latency_s=0.0, start_s=0.0, nccl=None)
        for tier in one.network.tiers
    )
    return replace(one, network=Levels(tiers))


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Draw a possibly valid run."""
    tp, pp, dp = (draw(st.sampled_from([1, 2, 4])) for _ in range(3))
    schedules = ["gpipe", "1f1b", "interleaved"] if pp > 1 else ["gpipe", "1f1b"]
    schedule = draw(st.sampled_from(schedules))
    microbatch = draw(st.sampled_from([1, 2]))
    run = changed(
        SMALL,
        tp=tp,
        pp=pp,
        dp=dp,
        gpus=tp * pp * dp,
        microbatch=microbatch,
        global_batch=microbatch * dp * pp * draw(st.integers(1, 3)),
        schedule=schedule,
        vp=2 if schedule == "interleaved" else 1,
        recompute=draw(st.sampled_from(["none", "full", "selective"])),
        sequence_parallel=draw(st.booleans()),
        zero=draw(st.sampled_from([0, 1, 2, 3])),
        overlap=draw(st.sampled_from([None, (), ("dp",), ("tp", "dp", "pp")])),
        gradients=draw(st.sampled_from([None, "bf16", "fp32"])),
    )
    try:
        run.check()
    except PhazeError as error:
        raise AssertionError(run) from error
    return run
