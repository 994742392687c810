"""Partitions as files of stages."""

from __future__ import annotations

import numpy as np

from phaze.partition.flow import Candidate
from phaze.partition.weights import Terms, stage_graph_of, stage_memory, weigh
from phaze.spec.stages import PartitionSettings, StoredStages
from phaze.workload.operator_graphs import OperatorGraph


def stored_stages(
    graph: OperatorGraph, found: Candidate, terms: Terms, model: str, replicas: int, microbatch: int
) -> StoredStages:
    """Return the file of a partition; PhazeError where numbers are larger than files may hold."""
    stages = stage_graph_of(graph, found.stage_of, terms, replicas)
    rows = np.stack([stages.forward_s, stages.backward_s, stages.parameter_bytes], axis=1).tolist()
    memory = stage_memory(weigh(graph, terms), found.stage_of).tolist()
    limit = terms.device_memory_bytes
    content = {
        "format": "phaze-stages",
        "version": 1,
        "model": model,
        "replicas": replicas,
        "microbatches": terms.microbatches,
        "recompute": terms.recompute,
        "device_memory_bytes": limit if np.isfinite(limit) else None,
        "stages": [
            {
                "operators": [graph.names[v] for v in np.flatnonzero(found.stage_of == s)],
                "forward_s": forward,
                "backward_s": backward,
                "parameter_bytes": parameters,
                "memory_bytes": memory[s],
            }
            for s, (forward, backward, parameters) in enumerate(rows)
        ],
        "edges": [
            {"source": i, "target": j, "bytes": size}
            for (i, j), size in zip(stages.edges.tolist(), stages.edge_bytes.tolist(), strict=True)
        ],
        "stage_time_s": found.time_s,
        "step_time_s": found.step_s,
        "settings": _settings(found, terms, microbatch),
    }
    return StoredStages.parse(content, model)


def _settings(found: Candidate, terms: Terms, microbatch: int) -> PartitionSettings:
    return PartitionSettings(
        partitioner=found.made_by,
        microbatch=microbatch,
        bandwidth_bytes_per_s=terms.bandwidth_bytes_per_s,
        hyper_operators=found.hyper_operators,
        alpha=found.alpha,
        moves=found.moves or None,
    )
