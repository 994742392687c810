"""Small instances in the JSON of the authors' program."""

from __future__ import annotations

from tests.unit.formulas.phaze.files import Plain


def example() -> Plain:
    """Return an instance of a fork: 5 -> 2 -> 9 and 5 -> 9, with width 2 for the layers 2 and 9 only."""
    edges = [(5, 2, 100.0), (2, 9, 200.0), (5, 9, 50.0)]
    return {
        "maxDevices": 4,
        "maxMemoryPerDevice": 1e4,
        "bandwidth": 1e3,
        "mbsInBatch": 8.0,
        "nodes": [
            node(5, "embedding", (1,), edges),
            node(2, "block", (1, 2), edges),
            node(9, "head", (1, 2), edges),
        ],
        "edges": [
            {"sourceId": source, "destId": target, "communicationCost": size}
            for source, target, size in edges
        ],
    }


def node(layer: int, name: str, widths: tuple[int, ...], edges: list[tuple[int, int, float]]) -> Plain:
    """Return a layer with a plain and a recomputing configuration at each width."""

    def configuration(width: int, *, again: bool) -> Plain:
        return {
            "id": "activation recomp" if again else "vanilla",
            "timePerSample": (4.0 if again else 3.0) / width,
            "parameterSize": 500.0 / width,
            "memoryUsageA": 100.0 if again else 400.0,
            "memoryUsageB": 1000.0 / width,
            "syncTimeFw": {str(u): size * (width - 1) for u, v, size in edges if v == layer},
            "syncTimeBw": {str(v): size * (width - 1) / 2 for u, v, size in edges if u == layer},
        }

    both = {str(width): [configuration(width, again=again) for again in (False, True)] for width in widths}
    return {"id": layer, "name": name, "TMPCs": both}
