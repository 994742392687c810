"""Minimal studies of models, plans, tiled accelerators and maps."""

import json
from typing import TypedDict

from tests.unit.formulas.piper.chains import repeated

SMALL: dict[str, object] = {
    "architectures": {"named": ["tpu-v4", "phaze-common"], "grid": None, "baseline": "tpu-v4"}
}
FAST = {"note": "a fast network", "scenario": {"network_bandwidth_bytes_per_s": 1e13}}
"""Settings of a reading."""
OWN = {"workload": "tiny", "microbatch": 2, "architecture": "tpu-v4"}
POINT = {"microbatches": [8], "clusters": [{"devices": [2], "memory_gib": [1]}]}
PLANS = {
    "folder": "inputs",
    "inputs": {"chain": {"label": "Chain", "file": "chain.json"}, "ours": {"label": "Tiny", "own": OWN}},
    "cases": {"bars": {"input": "ours", "show": "throughput", **POINT}},
}
TILED = {
    "tables": [],
    "figures": [],
    "cases": {
        "table": {
            "title": "Table", "show": "table", "batches": {"gpt2-xl": 32},
            "sequence": 64, "microbatches": [4], "operators": "palm", "recompute": "always",
            "dram": "unlimited", "remainder": "drop",
        },
    },
}  # fmt: skip
MAPS = {
    "tries": 2000,
    "steps": 500,
    "graphs": {
        "tiny": {
            "label": "Tiny", "model": "./tiny.yaml", "microbatch": 2, "system": "titan-v-ethernet",
            "hyper_operators": 6,
        },
    },
    "topologies": {
        "mesh": {"label": "2 x 2", "sizes": [{"kind": "mesh", "sides": [2, 2], "link_gib_per_s": 10}]},
    },
    "cases": {"one": {"graphs": ["tiny"], "topologies": ["mesh"], "shapes": [[2, 2]], "show": "topologies"}},
}  # fmt: skip


class Everything(TypedDict):
    """Study with every kind of job, as input of `write_study`."""

    files: dict[str, str]
    readings: object
    report: object
    plans: object
    tiled: object
    maps: object


EVERYTHING = Everything(
    files={"inputs/chain.json": json.dumps(repeated())},
    readings={"fast": FAST},
    report={
        "strategies": {"models": []},
        "sensitivity": {"hbm-half": {"hbm_bandwidth_factor": 0.5}},
        "published": None,
    },
    plans=PLANS,
    tiled=TILED,
    maps=MAPS,
)
