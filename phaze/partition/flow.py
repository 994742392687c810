"""Partition of operators into stages: clustering, dynamic program, refinement (Parmesan, Section IV).

The paper's flow clusters with every α, partitions the clusters, refines, and takes the α whose partition is
simulated fastest. Its refinement may make a partition worse (see `refinement`), so the faster of both in
simulation is kept.

Clusters hide good stage boundaries: on graphs of models the paper's flow ends several per cent above the
optimum. The full flow continues from there. The best partition so far, including intervals of one order,
limits the time of every stage. The limit leaves only a few operators open at every boundary (see `fronted`),
and the dynamic program over these is exact for all operators. If a boundary still has too many fronted
subgraphs, only operators near the boundaries of the best partition so far are open, in several rounds. An
integer program then looks for a better partition and for a bound (see `integer`). The result is the fastest
partition in simulation whose slowest stage takes at most 2 %, or `slack`, longer than the shortest one found.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from phaze.base.arrays import Ints
from phaze.base.errors import PhazeError
from phaze.partition.clustering import ALPHAS, cluster
from phaze.partition.fronted import TooManyError, around
from phaze.partition.intervals import cut_in_order
from phaze.partition.program import Cut, cut_between, cut_of, cut_within
from phaze.partition.refinement import distances, refine
from phaze.partition.weights import PartitionTerms, Weights, quotient, stage_graph_of, sums, weigh
from phaze.pipeline.gpipe import flat_step_time_s
from phaze.workload.operator_graphs import OperatorGraph

Flow = Literal["full", "paper"]
Maker = Literal[
    "clusters", "refinement", "balance", "operators", "program", "messages", "order",
    "parmesan", "pipedream", "topological", "piper", "phaze", "paces",
]  # fmt: skip
"""Method that made a partition.

clusters: dynamic program on clusters; refinement: the paper's; balance: refinement by time; operators:
dynamic program on operators; program: integer program; messages: dynamic program with the least messages;
order: intervals of one order; paces: intervals for the devices and links of a mapping; others: planners.
"""

SLACK = 0.02
"""Default tolerance: the slowest stage may take 2 % longer than the shortest time possible."""
SLACKS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Tolerances of the slowest stage time to try, in exchange for fewer messages."""
MOST_SETS = 20_000
"""Maximum number of fronted subgraphs at a stage boundary, which limits the pairs to compare."""
FEW_SETS = 1_000
"""Maximum number of fronted subgraphs at a boundary in a quick search near the best partition."""
PROOF = 2e-6
"""Largest relative gap to a bound that counts as proven; solvers stop at half of it."""
ROUNDS = 8
"""Maximum number of rounds that move stage boundaries if one has too many fronted subgraphs."""
NARROWER = (0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005)
"""How far a stage boundary may move to either side, as shares of the slowest stage time."""


@dataclass(frozen=True)
class CutOptions:
    """Options of the search for a partition."""

    hyper_operators: int | None = None
    """K, the number of hyper-operators, with S « K « operators; by default 4 S, at least 48.

    The paper's models use 32 to 96 for 4 to 16 stages (Tables VII and VIII)."""
    flow: Flow = "full"
    slack: float = SLACK
    """Allowed excess of the slowest stage over its minimum time, as a share, if the simulated step gets
    faster.
    """


@dataclass(frozen=True, eq=False)
class PartitionCandidate:
    """A partition that the flow found, with its times and the method that made it."""

    stage_of: Ints
    """Stage of each node, shape (n,)."""
    time_s: float
    """Time of the slowest stage, equation (3)."""
    step_s: float
    """Simulated step time with the flat bandwidth."""
    made_by: Maker
    alpha: float | None = None
    hyper_operators: int | None = None
    moves: int = 0
    """Number of moves of the refinement."""


@dataclass(frozen=True, eq=False)
class Partition:
    """Result of the flow: the chosen partition and all candidates."""

    chosen: PartitionCandidate
    candidates: tuple[PartitionCandidate, ...]
    bound_s: float
    """Lower bound on the slowest stage time of any partition."""
    proven: bool
    """True if `bound_s` is the optimum: the dynamic program or the integer program finished."""

    @property
    def gap(self) -> float:
        """Relative excess of the slowest stage's time over its lower bound."""
        return self.chosen.time_s / self.bound_s - 1.0 if self.bound_s else 0.0


@dataclass(frozen=True, eq=False)
class PartitionProblem:
    """Operator graph to partition into S stages of R devices."""

    graph: OperatorGraph
    weights: Weights
    terms: PartitionTerms
    stages: int
    replicas: int

    def candidate(self, stage_of: Ints, made_by: Maker) -> PartitionCandidate:
        """Candidate partition with its slowest stage time and its simulated step time."""
        return PartitionCandidate(
            stage_of, cut_of(self.weights, stage_of).time_s, self.step_s(stage_of), made_by
        )

    def step_s(self, stage_of: Ints) -> float:
        """Simulated step time of a partition."""
        stages = stage_graph_of(self.graph, stage_of, self.terms, self.replicas)
        return flat_step_time_s(stages, self.terms.bandwidth_bytes_per_s, self.terms.latency_s)


def problem_of(graph: OperatorGraph, terms: PartitionTerms, stages: int, replicas: int) -> PartitionProblem:
    """Partition problem of a graph; PhazeError if it obviously has no solution.

    It has none with fewer operators than stages, without compute time, or with too little memory in total.
    """
    weights = weigh(graph, terms)
    if stages > len(weights):
        raise PhazeError(f"partition: {stages} stages need as many operators, the graph has {len(weights)}")
    if not weights.total_s > 0:
        raise PhazeError("partition: the operators of the graph take no time: there is nothing to balance")
    _check_memory(graph, weights, stages)
    return PartitionProblem(graph, weights, terms, stages, replicas)


def partition(
    graph: OperatorGraph, terms: PartitionTerms, stages: int, replicas: int, options: CutOptions
) -> Partition:
    """Partition an operator graph into S stages of R devices each.

    Raises PhazeError for fewer operators than stages, and if no partition that fits in memory is found.
    """
    problem = problem_of(graph, terms, stages, replicas)
    candidates = list(_paper_flow(problem, options))
    # The slowest stage takes at least the mean stage time, and the longest operator.
    lowest = max(problem.weights.total_s / stages, float(problem.weights.compute_s.max()))
    if options.flow == "paper":
        if not candidates:
            raise PhazeError(_none_fits(problem, proven=False))
        chosen = min(candidates, key=_by_step)
        return Partition(chosen, tuple(candidates), lowest, proven=False)
    return _full_flow(problem, options, candidates, lowest)


def _paper_flow(problem: PartitionProblem, options: CutOptions) -> Iterator[PartitionCandidate]:
    """For each α, yield the best partition of the clusters, then its refinement."""
    weights, far = problem.weights, distances(problem.weights)
    most = options.hyper_operators or max(48, 4 * problem.stages)
    for alpha in ALPHAS:
        labels = cluster(weights, max(most, problem.stages), alpha)
        smaller, group = quotient(weights, labels)
        cut = cut_clusters(smaller, problem.stages)
        if cut is None:
            continue
        before = replace(problem.candidate(cut[group], "clusters"), alpha=alpha, hyper_operators=len(smaller))
        yield before
        refined, moves = refine(weights, before.stage_of, far)
        if moves:
            step, time = problem.step_s(refined), cut_of(weights, refined).time_s
            yield replace(
                before, stage_of=refined, step_s=step, time_s=time, moves=moves, made_by="refinement"
            )


def cut_clusters(smaller: Weights, stages: int) -> Ints | None:
    """Best partition of clusters, Equation (13); if fronted sets are too many, intervals of one order."""
    if len(smaller) < stages:
        return None
    ordered = cut_in_order(smaller, stages)
    try:
        limit = np.inf if ordered is None else cut_of(smaller, ordered).time_s
        cut = cut_within(smaller, stages, limit, MOST_SETS)
    except TooManyError:
        return ordered
    return ordered if cut is None else cut.stage_of


def _full_flow(
    problem: PartitionProblem, options: CutOptions, candidates: list[PartitionCandidate], lowest: float
) -> Partition:
    """Best partition of the paper's flow, time-based refinement, dynamic programs and integer program."""
    weights = problem.weights
    ordered = cut_in_order(weights, problem.stages)  # close to optimal if branches are narrow
    candidates += [] if ordered is None else [problem.candidate(ordered, "order")]
    still = np.zeros(len(weights), np.int64)
    candidates += [
        problem.candidate(refine(weights, candidate.stage_of, still, by_time=True)[0], "balance")
        for candidate in candidates
    ]
    best = min(candidates, key=_by_time, default=None)
    cuts, bound = _cut_operators(weights, problem.stages, best)
    candidates += [problem.candidate(candidate.stage_of, maker) for maker, candidate in cuts.items()]
    if not candidates:
        raise PhazeError(_none_fits(problem, proven=bool(np.isinf(bound))))
    least = min(candidates, key=_by_time)
    candidates += _fewer_messages(problem, least.time_s, options.slack)
    near = [candidate for candidate in candidates if candidate.time_s <= (1 + options.slack) * least.time_s]
    proven = bound >= least.time_s * (1 - PROOF)
    bound = least.time_s if proven else max(bound, lowest)
    return Partition(min(near, key=_by_step), tuple(candidates), bound, proven)


def _cut_operators(
    weights: Weights, stages: int, best: PartitionCandidate | None
) -> tuple[dict[Maker, Cut], float]:
    """Best partitions of all operators by method, and a lower bound on the slowest stage time.

    If a boundary has too many fronted subgraphs, an integer program continues from the best partition, or
    looks for a first one. The bound is infinite if it is proven that no partition fits in memory.
    """
    near = None if best is None else _cut_near(weights, best.stage_of, min(FEW_SETS, MOST_SETS))
    limit = np.inf if near is None else near.time_s
    try:
        exact = cut_within(weights, stages, limit, MOST_SETS)
        return ({}, limit) if exact is None else ({"operators": exact}, exact.time_s)
    except TooManyError:
        return _cut_without_sets(weights, stages, near)


def _cut_without_sets(weights: Weights, stages: int, near: Cut | None) -> tuple[dict[Maker, Cut], float]:
    from phaze.partition.integer import (
        cut_by_program,
    )  # its solver takes longer to import than most graphs to partition

    best = None if near is None else _cut_near(weights, near.stage_of, MOST_SETS)
    solved = cut_by_program(weights, stages, np.inf if best is None else best.time_s)
    cuts: dict[Maker, Cut] = {} if best is None else {"operators": best}
    if solved is not None and solved.cut is not None:
        cuts["program"] = solved.cut
        if best is None:
            cuts["operators"] = _cut_near(weights, solved.cut.stage_of, MOST_SETS)
    return cuts, 0.0 if solved is None else solved.bound_s


def _cut_near(weights: Weights, stage_of: Ints, most_sets: int) -> Cut:
    """Best partition with stage boundaries near those of a given one, improved in several rounds."""
    best = cut_of(weights, stage_of)
    for _ in range(ROUNDS):
        cut = next(_cuts_around(weights, best, most_sets), None)
        if cut is None or cut.time_s >= best.time_s:
            break
        best = cut
    return best


def _cuts_around(weights: Weights, best: Cut, most_sets: int) -> Iterator[Cut]:
    """Yield the best partition with boundaries near those of `best`, for ranges from widest to narrowest.

    Ranges with too many fronted subgraphs are skipped.
    """
    borders = sums(best.stage_of, weights.compute_s, int(best.stage_of.max()) + 1).cumsum()[:-1]
    for share in NARROWER:
        reach = share * best.time_s
        windows = around(weights, borders - reach, borders + reach)
        smaller, group = quotient(weights, windows.groups)
        narrow = around(smaller, borders - reach, borders + reach)
        try:
            cut = cut_between(smaller, narrow, best.time_s, most_sets, thrifty=False)
        except TooManyError:
            continue
        if cut is not None:
            yield cut_of(weights, cut[group])


def _fewer_messages(
    problem: PartitionProblem, time_s: float, most_slack: float
) -> Iterator[PartitionCandidate]:
    """Yield the partition with the fewest message bytes for each tolerance on the slowest stage's time.

    A step of GPipe takes about MB - 1 times the slowest stage plus once all stages. The total compute time is
    fixed by the graph, so the best partition for each slowest time is the one with the fewest message bytes.
    """
    for slack in SLACKS:
        if slack > most_slack:
            return
        try:
            limit = (1 + slack) * time_s
            cut = cut_within(problem.weights, problem.stages, limit, MOST_SETS, thrifty=True)
        except TooManyError:
            return
        if cut is not None:
            yield problem.candidate(cut.stage_of, "messages")


def _by_step(candidate: PartitionCandidate) -> tuple[float, float]:
    return candidate.step_s, candidate.time_s


def _by_time(candidate: PartitionCandidate) -> tuple[float, float]:
    return candidate.time_s, candidate.step_s


def _check_memory(graph: OperatorGraph, weights: Weights, stages: int) -> None:
    """Raise PhazeError if the largest operator or the mean stage exceeds the memory."""
    largest = int(np.argmax(weights.memory_bytes))
    for needed, what in (
        (float(weights.memory_bytes[largest]), f"operator {graph.names[largest]}"),
        (float(weights.memory_bytes.sum()) / stages, f"each of {stages} stages on average"),
    ):
        if needed > weights.limit_bytes:
            raise PhazeError(
                f"partition: no stage fits in memory: {what} needs {needed:.4g} bytes, a device has "
                f"{weights.limit_bytes:.4g}",
                "allow more memory or stages, or take a smaller microbatch",
            )


def _none_fits(problem: PartitionProblem, *, proven: bool) -> str:
    """Error message: no partition fits in memory, or none was found although one may exist."""
    into = f"partition into {problem.stages} stages"
    problem_text = f"no {into} fits in memory"
    if not proven:
        problem_text = f"found no {into} that fits in memory, and no proof that there is none"
    return (
        f"partition: {problem_text}: the one found with the least needs "
        f"{_least_memory(problem.weights, problem.stages):.4g} bytes, a device has "
        f"{problem.weights.limit_bytes:.4g}; allow more memory or stages, or take a smaller microbatch"
    )


def _least_memory(weights: Weights, stages: int) -> float:
    """Lowest peak stage memory, in bytes, of any partition into intervals of the node order."""
    as_time = replace(weights, compute_s=weights.memory_bytes, seconds_per_byte=1.0, limit_bytes=np.inf)
    stage_of = cut_in_order(as_time, stages)
    return np.inf if stage_of is None else cut_of(as_time, stage_of).time_s
