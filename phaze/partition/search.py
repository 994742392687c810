"""The search for the number of stages S and of replicas R of a cluster (Parmesan, Appendix B).

Every S that divides the devices is cut and simulated with R = D / S replicas, pipeline bubbles and the
all-reduce included; the configuration with the most samples a second is the best. The microbatch and MB stay
the same, so that the batch grows with R.
"""

from __future__ import annotations

from dataclasses import dataclass

from phaze.base.errors import PhazeError
from phaze.partition.flow import SLACK, Flow, Options, Partition, partition
from phaze.partition.weights import Terms
from phaze.workload.operator_graphs import OperatorGraph


@dataclass(frozen=True, eq=False)
class Configuration:
    """A number of stages and of replicas."""

    stages: int
    replicas: int
    found: Partition | None
    """None: it cannot be cut that way."""
    reason: str
    """Why there is no partition, empty where there is one."""
    microbatches_per_s: float
    """Throughput of all replicas, 0 without a partition."""


def hyper_operators_for(stages: int) -> int:
    """K that is taken unless one is given or the model has one, S « K « operators.

    The models of the paper have those of its Tables VII and VIII, 32 to 96 for 4 to 16 stages.
    """
    return max(48, 4 * stages)


def divisors(devices: int, most: int) -> list[int]:
    """Divisors of a number of devices up to `most`, rising."""
    return [stages for stages in range(1, min(devices, most) + 1) if devices % stages == 0]


@dataclass(frozen=True)
class Wanted:
    """What is asked for; None is what is searched."""

    stages: int | None = None
    replicas: int | None = None
    devices: int | None = None
    hyper_operators: int | None = None
    """K; `hyper_operators_for` unless given."""
    flow: Flow = "full"
    slack: float = SLACK

    def options(self, stages: int) -> Options:
        """Return how a graph is cut into so many stages."""
        most = self.hyper_operators or hyper_operators_for(stages)
        return Options(most, flow=self.flow, slack=self.slack)


def search(graph: OperatorGraph, terms: Terms, wanted: Wanted) -> list[Configuration]:
    """Configurations of what is asked for, the best first.

    Raises PhazeError if the shape makes no sense, or if there is no partition at all.
    """
    given = shapes(wanted.stages, wanted.replicas, wanted.devices, most=len(graph.names))
    tried = [_try(graph, terms, stages, replicas, wanted.options(stages)) for stages, replicas in given]
    ordered = sorted(tried, key=lambda one: (-one.microbatches_per_s, one.stages))
    if ordered[0].found is None:
        raise PhazeError(tried[-1].reason)
    return ordered


def shapes(stages: int | None, replicas: int | None, devices: int | None, most: int) -> list[tuple[int, int]]:
    """All S and R that are possible, with S at most `most` where it is searched."""
    if stages is not None and replicas is not None:
        if devices is not None and devices < stages * replicas:
            raise PhazeError(
                f"partition: {stages} stages of {replicas} replicas need {stages * replicas} devices, "
                f"there are {devices}"
            )
        return [(stages, replicas)]
    if devices is None:
        raise PhazeError("partition: needs the stages and the replicas, or the devices to search them for")
    for name, value in (("stages", stages), ("replicas", replicas)):
        if value is not None and devices % value:
            raise PhazeError(f"partition: {devices} devices cannot be shared evenly by {value} {name}")
    if stages is not None:
        return [(stages, devices // stages)]
    if replicas is not None:
        return [(devices // replicas, replicas)]
    return [(count, devices // count) for count in divisors(devices, most)]


def _try(graph: OperatorGraph, terms: Terms, stages: int, replicas: int, options: Options) -> Configuration:
    try:
        found = partition(graph, terms, stages, replicas, options)
    except PhazeError as error:
        return Configuration(stages, replicas, None, str(error), 0.0)
    rate = replicas * terms.microbatches / found.chosen.step_s
    return Configuration(stages, replicas, found, "", rate)
