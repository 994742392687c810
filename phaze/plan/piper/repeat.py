"""A deeper or shallower model from the profile of one: its repeated layers occur another number of times.

The layers of the most frequent name must form a chain v_0 → … → v_{m-1}, m ≥ 3. The first and the last stay;
between them v_1 … v_{m-2} follow each other as often as needed, each with its own configurations and with
what it takes from layers outside the chain (Piper, Section 5.1: "created by expanding our BERT-32 profiles").
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import cycle, islice

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.errors import PhazeError
from phaze.plan.piper.layers import Layers, Options


@dataclass(frozen=True)
class _Edge:
    """An edge of the new layers, with the edges of the old ones that it takes its sizes from."""

    source: int
    target: int
    leaving: int
    """The old edge that leaves the source's original: c(u, v) and c_bw."""
    arriving: int
    """The old edge that arrives at the target's original: c_fw."""


def repeat_layers(layers: Layers, count: int) -> Layers:
    """Return the layers with those of the most frequent name so many times, or raise PhazeError."""
    chain = _chain(layers)
    if count == len(chain):
        return layers
    if count < 2:
        raise PhazeError(f"repeat: {count} given, at least 2 allowed: the first and the last layer stay")
    inner = islice(cycle(chain[1:-1]), count - 2)
    originals = [v for v in range(len(layers)) if v not in chain] + [chain[0], *inner, chain[-1]]
    edges = list(_edges(layers, chain, originals))
    old = np.array(originals)
    return Layers(
        ids=_ids(layers, originals),
        names=tuple(layers.names[v] for v in originals),
        edges=np.array([(e.source, e.target) for e in edges], dtype=np.int64).reshape(-1, 2),
        edge_bytes=layers.edge_bytes[[e.leaving for e in edges]],
        options={width: _options(some, old, len(layers), edges) for width, some in layers.options.items()},
    )


def _chain(layers: Layers) -> list[int]:
    """Return the repeated layers in the order of the data flow; raise PhazeError if they are no chain."""
    name, count = Counter(layers.names).most_common(1)[0]
    members = {v for v, other in enumerate(layers.names) if other == name}
    after = {u: v for u, v in layers.pairs if u in members and v in members}
    chain = [v for v in members if v not in after.values()][:1]
    while chain and chain[-1] in after:
        chain.append(after[chain[-1]])
    leaving = {u for u, v in layers.pairs if u in members and v not in members}
    joined = sum(1 for u, v in layers.pairs if u in members and v in members)
    if count < 3 or len(chain) != count or joined != count - 1 or leaving - set(chain[-1:]):
        raise PhazeError(
            f"repeat: the {count} layers named {name!r} must be a chain of at least three that only its last "
            "one leaves; give no repeat for this input"
        )
    return chain


def _edges(layers: Layers, chain: list[int], originals: list[int]) -> Iterator[_Edge]:
    """Yield the edges of the new layers."""
    outside = len(layers) - len(chain)
    new = {v: position for position, v in enumerate(originals[:outside])}
    links = [(e, u, v) for e, (u, v) in enumerate(layers.pairs) if u in chain and v in chain]
    leaving, arriving = {u: e for e, u, _ in links}, {v: e for e, _, v in links}
    for e, (u, v) in enumerate(layers.pairs):
        if u in new and v in new:
            yield _Edge(new[u], new[v], e, e)
        elif u in new:
            copies = [p for p in range(outside, len(originals)) if originals[p] == v]
            yield from (_Edge(new[u], p, e, e) for p in copies)
        elif v in new:
            yield _Edge(len(originals) - 1, new[v], e, e)
    for p in range(outside, len(originals) - 1):
        yield _Edge(p, p + 1, leaving[originals[p]], arriving[originals[p + 1]])


def _ids(layers: Layers, originals: list[int]) -> tuple[int, ...]:
    """Return the old id of every first copy, and ids above all old ones for the others."""
    fresh = iter(range(max(layers.ids) + 1, max(layers.ids) + 1 + len(originals)))
    seen: set[int] = set()
    ids = []
    for v in originals:
        ids.append(next(fresh) if v in seen else layers.ids[v])
        seen.add(v)
    return tuple(ids)


def _options(options: Options, originals: Ints, layers: int, edges: list[_Edge]) -> Options:
    """Return the configurations of the new layers at one width."""
    first = options.first(layers)
    rows = np.concatenate([np.arange(first[v], first[v + 1]) for v in originals]).astype(np.int64)
    layer = np.repeat(np.arange(len(originals)), first[originals + 1] - first[originals])
    arriving, leaving = np.array([e.arriving for e in edges]), np.array([e.leaving for e in edges])
    at_target = layer[:, None] == np.array([e.target for e in edges])
    at_source = layer[:, None] == np.array([e.source for e in edges])
    return replace(
        options.take(rows),
        layer=layer,
        forward_sync_bytes=np.where(at_target, options.forward_sync_bytes[np.ix_(rows, arriving)], 0.0),
        backward_sync_bytes=np.where(at_source, options.backward_sync_bytes[np.ix_(rows, leaving)], 0.0),
    )
