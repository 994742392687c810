"""What is written in the authors' format reads back as the same layers."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from phaze.plan.piper.instance import read_instance, write_instance
from phaze.plan.piper.layers import Cluster
from tests.unit.plan.piper.chains import layers_of, repeated


def test_an_instance_reads_back_as_it_was_written(tmp_path: Path) -> None:
    layers = layers_of(repeated(), tmp_path)
    write_instance(tmp_path / "again.json", layers, Cluster(8, 1 / 3, 25 * 2**30, 7))
    read = read_instance(tmp_path / "again.json")
    again = read.layers()
    assert (read.max_devices, read.max_memory_per_device, read.mbs_in_batch) == (8, 1 / 3, 7)
    assert (again.ids, again.names, again.pairs) == (layers.ids, layers.names, layers.pairs)
    np.testing.assert_array_equal(again.edge_bytes, layers.edge_bytes)
    assert list(again.options) == list(layers.options)
    for width, options in layers.options.items():
        assert again.options[width].names == options.names
        for column in ("layer", "time_s", "weight_bytes", "stash_bytes", "fixed_bytes"):
            np.testing.assert_array_equal(getattr(again.options[width], column), getattr(options, column))
        np.testing.assert_array_equal(again.options[width].forward_sync_bytes, options.forward_sync_bytes)
        np.testing.assert_array_equal(again.options[width].backward_sync_bytes, options.backward_sync_bytes)
