"""A small model with repeated layers and a mask read by all of them, in the authors' format."""

from __future__ import annotations

import json
from pathlib import Path

from phaze.formulas.piper.instance import read_instance
from phaze.formulas.piper.layers import ProfiledLayers

Plain = dict[str, object]


def configuration(name: str, time: float, sources: list[int], targets: list[int], tensor: int) -> Plain:
    return {
        "id": name,
        "timePerSample": time,
        "parameterSize": 100.0 / tensor,
        "memoryUsageA": 10.0,
        "memoryUsageB": 200.0 / tensor,
        "syncTimeFw": {str(u): 7.0 * (tensor - 1) for u in sources},
        "syncTimeBw": {str(v): 9.0 * (tensor - 1) for v in targets},
    }


def repeated(count: int = 4) -> Plain:
    """Return an embedding, a mask, several layers with slightly different times, and a head."""
    block = {i: 2 + i for i in range(count)}
    head = 2 + count
    edges = [(0, block[0], 50.0), *((block[i], block[i + 1], 60.0 + i) for i in range(count - 1))]
    edges += [(block[count - 1], head, 80.0), *((1, v, 5.0) for v in block.values())]
    names = {0: "embedding", 1: "mask", **dict.fromkeys(block.values(), "layer"), head: "head"}
    return {
        "maxDevices": 8,
        "maxMemoryPerDevice": 5000,
        "bandwidth": 1000.0,
        "mbsInBatch": 8,
        "nodes": [
            {
                "id": v,
                "name": name,
                "TMPCs": {
                    str(t): [
                        configuration(
                            "vanilla",
                            (1.0 + 0.125 * v) / t if name == "layer" else 0.5,
                            [u for u, w, _ in edges if w == v],
                            [w for u, w, _ in edges if u == v],
                            t,
                        )
                    ]
                    for t in (1, 2)
                },
            }
            for v, name in names.items()
        ],
        "edges": [{"sourceId": u, "destId": v, "communicationCost": size} for u, v, size in edges],
    }


def layers_of(content: Plain, folder: Path) -> ProfiledLayers:
    """Return the layers of an instance."""
    path = folder / "input.json"
    path.write_text(json.dumps(content))
    return read_instance(path).layers()
