"""Machines with more or fewer devices than their system have the same network between those that stay."""

from phaze.layout import Group
from phaze.plan.lowered import load_machine


def test_a_machine_has_as_many_devices_as_are_asked_for() -> None:
    own, large, small = (load_machine("h100", devices=devices) for devices in (None, 16384, 64))
    assert (own.devices, large.devices, small.devices) == (6144, 16384, 64)
    for group in (Group(8, 1), Group(8, 8), Group(4, 16)):
        assert (
            len({machine.network.seconds("all_reduce", 1e9, group) for machine in (own, large, small)}) == 1
        )
    wide = Group(2048, 8)
    assert large.network.seconds("all_reduce", 1e9, wide) > large.network.seconds(
        "all_reduce", 1e9, Group(8, 8)
    )
