"""Files of operators and stages, with messages for invalid ones."""

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.operators import StoredOperators
from phaze.spec.stages import StoredStages


def operator(name: str, **changed: object) -> dict[str, object]:
    sizes = {"parameter_bytes": 8.0, "forward_bytes": 1.0, "backward_bytes": 2.0}
    return {"name": name, "forward_s": 1.0, "backward_s": 2.0} | sizes | changed


def operators(*ends: tuple[str, str], **changed: object) -> dict[str, object]:
    return {
        "format": "phaze-operators",
        "version": 1,
        "name": "toy",
        "microbatch": 4,
        "operators": [operator("a"), operator("b"), operator("c")],
        "edges": [{"source": u, "target": v, "bytes": 16} for u, v in ends],
    } | changed


def stages(*ends: tuple[int, int], **changed: object) -> dict[str, object]:
    stage = {"forward_s": 1.0, "backward_s": 2.0, "parameter_bytes": 8.0}
    return {
        "format": "phaze-stages",
        "version": 1,
        "model": "toy",
        "replicas": 2,
        "microbatches": 4,
        "recompute": True,
        "stages": [stage, stage, stage],
        "edges": [{"source": u, "target": v, "bytes": 16} for u, v in ends],
    } | changed


def test_operators_may_come_in_any_order() -> None:
    graph = StoredOperators.parse(operators(("c", "a"), ("a", "b")), "toy.json")
    assert [graph.operators[k].name for k in graph.order()] == ["c", "a", "b"]


def test_operators_in_a_topological_order_keep_it() -> None:
    graph = StoredOperators.parse(operators(("a", "c"), ("b", "c")), "toy.json")
    assert graph.order() == (0, 1, 2)


def test_a_file_of_stages_may_be_written_by_hand() -> None:
    partition = StoredStages.parse(stages((0, 1), (0, 2), (1, 2)), "toy.json")
    assert (partition.settings, partition.stage_time_s, partition.stages[0].operators) == (None, None, ())


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            operators(("a", "b"), ("b", "a")),
            "not form a cycle, got a -> b -> a|not form a cycle, got b -> a -> b",
        ),
        (operators(("a", "a")), "not form a cycle, got a -> a"),
        (operators(("a", "d")), "target 'd' is not the name of an operator"),
        (operators(("a", "b"), ("a", "b")), "a -> b is given 2 times"),
        (operators(operators=[operator("a"), operator("a")]), "name 'a' is given 2 times"),
        (operators(operators=[operator("a", forward_s=-1)]), "operators.0.forward_s: .*got -1"),
        (operators(operators=[operator("a", forward_s=float("nan"))]), "should be a finite number"),
        (operators(operators=[operator("a", forward_s="1")]), "must be a number"),
        (operators(operators=[operator("a", flops=1)]), "operators.0.flops: is not a known key"),
        (operators(operators=[]), "operators: "),
        (operators(kind="x"), "kind: is not a known key"),
        (operators(format="phaze-stages"), "format: .*phaze-operators"),
        (operators(version=2), "version: .*1"),
        (operators(microbatch=0), "microbatch: "),
    ],
)
def test_bad_operators_are_named(data: object, message: str) -> None:
    with pytest.raises(PhazeError, match=f"toy.json: (?s:.*)({message})"):
        StoredOperators.parse(data, "toy.json")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (stages((0, 3)), "0 -> 3: stages are numbered from 0 to 2"),
        (stages((1, 0)), "1 -> 0: must lead to a later stage"),
        (stages((1, 1)), "1 -> 1: must lead to a later stage"),
        (stages((0, 1), (0, 1)), "0 -> 1 is given 2 times"),
        (stages((-1, 1)), "edges.0.source: .*got -1"),
        (stages(stages=[]), "stages: "),
        (stages(replicas=0), "replicas: .*got 0"),
        (stages(recompute=1), "recompute: .*got 1"),
        (stages(device_memory_bytes=0), "device_memory_bytes: .*got 0"),
        (stages(settings={"k": 1}), "settings.k: is not a known key"),
        (stages(gpus=1), "gpus: is not a known key"),
    ],
)
def test_bad_stages_are_named(data: object, message: str) -> None:
    with pytest.raises(PhazeError, match=f"toy.json: (?s:.*){message}"):
        StoredStages.parse(data, "toy.json")


def test_an_operator_is_in_one_stage() -> None:
    stage = {"operators": ["a"], "forward_s": 1.0, "backward_s": 2.0, "parameter_bytes": 8.0}
    with pytest.raises(PhazeError, match="operator 'a' is in 2 stages"):
        StoredStages.parse(stages(stages=[stage, stage]), "toy.json")
