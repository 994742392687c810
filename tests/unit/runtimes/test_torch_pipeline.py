"""From a module to a pipeline that trains it: profile, partition, emit and run, against the whole module."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest

from phaze.spec.documents import read_as
from phaze.spec.operators import StoredOperators
from tests.commands import ROOT, assert_refused, invoke, torchrun
from tests.unit.runtimes.modules import ENCODER_DECODER, RESNET, TRANSFORMER

needs_torch = pytest.mark.skipif(
    find_spec("torch") is None, reason="PyTorch is not installed; make runtimes has it"
)
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch.export in itself
PARAMETERS = {"encoder_decoder": 4 + 2 * 12 + 3 * 18, "resnet": 26, "transformer": 2 + 36}
"""Gradients that all stages have, counting the tied embedding in both of its stages."""
PAGE = ROOT / "config/how-to/own-module.md"
BRANCHING = """
import torch
class Branching(torch.nn.Linear):
    def forward(self, rows):
        return rows if rows.sum() > 0 else -rows
def make():
    return Branching(2, 2)
"""
UNSOLVABLE = """
import torch
class Unsolvable(torch.nn.Linear):
    def forward(self, rows):
        return torch.linalg.cholesky(-self.weight.T @ self.weight) @ rows.T
def make():
    return Unsolvable(4, 4)
"""


@pytest.fixture(name="folder")
def folder_of_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with the modules and a network of four devices."""
    (tmp_path / "transformer.py").write_text(TRANSFORMER)
    (tmp_path / "resnet.py").write_text(RESNET)
    (tmp_path / "encoder_decoder.py").write_text(ENCODER_DECODER)
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b]
    rows = "".join(f"{a},{b},1e-5,{1e8 * (1 + a + b)}\n" for a, b in pairs)
    (tmp_path / "links.csv").write_text("source,target,latency_s,bandwidth_bytes_per_s\n" + rows)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def profiled(model: str, *shapes: str) -> StoredOperators:
    inputs = " ".join(f"--input {shape}" for shape in shapes)
    invoke(f"profile {model}.py:make {inputs} --microbatch 2 --run-code --device cpu -o graph.json")
    return read_as(StoredOperators, "graph.json")


@needs_torch
@pytest.mark.usefixtures("folder")
def test_a_profile_on_a_cpu_has_one_thread_as_processes_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        profiled("resnet", "3x16x16")
        assert torch.get_num_threads() == 2
        monkeypatch.delenv("OMP_NUM_THREADS")
        profiled("resnet", "3x16x16")
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(threads)


@needs_torch
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shapes", "stages"),
    [
        ("resnet", ["3x16x16"], 4),
        ("transformer", ["8:index"], 2),
        # The encoder's output goes past stages to every decoder layer, the target past those of the encoder.
        ("encoder_decoder", ["6:index", "8:index"], 4),
    ],
)
def test_a_pipeline_has_the_loss_and_gradients_of_the_whole_module(
    folder: Path, model: str, shapes: list[str], stages: int
) -> None:
    profiled(model, *shapes)
    assert folder.is_dir()
    cut = f"--stages {stages} --replicas {4 // stages} --flow paper --no-recompute"
    invoke(f"partition graph.json {cut} -o stages.json")
    invoke("map stages.json --topology links.csv --steps 100 -o map.json")
    invoke("emit stages.json --map map.json --for torch -o pipe.py")
    for schedule in ("gpipe", "1f1b"):
        printed = torchrun(4, "pipe.py", "--check", "--steps", "3", "--schedule", schedule)
        assert ("batch norm is frozen" in printed) == (model == "resnet")
        compared = re.findall(r"largest difference (\S+) in the loss and (\d+) gradients", printed)
        assert len(compared) == 3
        assert max(float(worst) for worst, _ in compared) < 1e-6
        assert {int(count) for _, count in compared} == {PARAMETERS[model] * 4 // stages}


@needs_torch
@pytest.mark.slow
def test_five_commands_of_the_page_train_its_module_as_it_trains_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text(encoding="utf-8")
    (module,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    commands = re.findall(r"```console\n\s*(.*?)\n\s*```", page)
    assert len(commands) == 5
    (tmp_path / "model.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    for command in commands:
        program, *arguments = command.split()
        if program == "phaze":
            printed = invoke("", *arguments).stdout
        else:
            assert [program, arguments[0]] == ["torchrun", "--nproc-per-node"]
            printed = torchrun(int(arguments[1]), *arguments[2:])
    differences = [float(worst) for worst in re.findall(r"largest difference (\S+)", printed)]
    assert len(differences) == 20
    assert max(differences) < 1e-6
    assert "median time of forward and backward passes: " in printed


@needs_torch
def test_a_profile_has_the_sizes_of_the_modules_tensors(folder: Path) -> None:
    graph = profiled("resnet", "3x16x16")
    assert folder.is_dir()
    operators = {operator.name: operator for operator in graph.operators}
    # Double precision: 8 bytes; two samples of 8 x 14 x 14 after the first convolution.
    assert operators["0.conv2d"].parameter_bytes == 8 * (8 * 3 * 9 + 8)
    edges = {(edge.source, edge.target): edge.bytes for edge in graph.edges}
    assert edges["0.conv2d", "1.native_batch_norm_legit_no_training"] == 8 * 2 * 8 * 14 * 14
    assert edges["2.relu", "3.add"] == edges["2.relu", "3.first.conv2d"]
    # The first operator reads images, which have no gradients; weights have.
    assert operators["0.conv2d"].backward_bytes == 2 * operators["0.conv2d"].parameter_bytes
    assert all(operator.forward_s > 0 for operator in graph.operators)
    # The time to enter autograd does not count, so the backward pass of a reshape may take none.
    assert all(operator.backward_s > 0 for operator in graph.operators if "conv2d" in operator.name)
    assert graph.profiled is not None
    assert graph.profiled.step_s > 0
    assert graph.profiled.module == "resnet.py:make"


@needs_torch
def test_tied_weights_count_once(folder: Path) -> None:
    total = sum(operator.parameter_bytes for operator in profiled("transformer", "8:index").operators)
    assert folder.is_dir()
    block = 4 * 16 * 16 + 4 * 16 + 2 * 16 * 32 + 32 + 16 + 4 * 16
    assert total == 8 * (50 * 16 + 3 * block)


@needs_torch
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def make(): return 3", "cannot be created:\nTypeError: .*must return a torch.nn.Module, got int"),
        ("def make(): raise OSError('no weights')", "cannot be created:\nOSError: no weights"),
        ("def other(): pass", "cannot be created:\nAttributeError: .*make: is missing"),
        (
            BRANCHING,
            "cannot be traced by torch.export:\n",
        ),
        ("import torch\ndef make(): return torch.nn.Linear(5, 2)", "cannot be traced by torch.export:\n"),
        (UNSOLVABLE, "cannot be executed:\n.*LinAlgError"),
    ],
)
def test_a_module_that_fails_is_named_before_its_own_error(folder: Path, code: str, message: str) -> None:
    (folder / "bad.py").write_text(code)
    assert_refused(
        f"profile: bad.py:make: {message}", "profile bad.py:make --input 4 --run-code -o graph.json"
    )
    assert not (folder / "graph.json").exists()


def test_nothing_runs_without_permission(folder: Path) -> None:
    (folder / "bad.py").write_text("open('ran', 'w')")
    assert_refused(
        "bad.py:make would be executed; allow it with --run-code",
        "profile bad.py:make --input 4 -o graph.json",
    )
    assert not (folder / "ran").exists()


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("profile model:make --input 4 -o graph.json", "must be FILE.py:NAME"),
        ("profile model.py:make --input 4xx -o graph.json", "--input: must be a shape"),
        ("profile model.py:make --input 4:word -o graph.json", "--input: must be a shape"),
    ],
)
def test_a_bad_option_is_named(command: str, message: str) -> None:
    assert_refused(message, command)


OPERATORS = ("a", "b", "c")
LINE = [("a", "b"), ("b", "c")]


def graph_file(folder: Path, *, forward_s: float = 1.0, edges: list[tuple[str, str]] = LINE) -> None:
    """Write a graph of three operators."""
    costs = {"backward_s": 2.0, "parameter_bytes": 0, "forward_bytes": 8, "backward_bytes": 8}
    content = {
        "format": "phaze-operators",
        "version": 1,
        "name": "toy",
        "microbatch": 1,
        "operators": [
            {"name": name, "forward_s": forward_s if name == "a" else 1.0, **costs} for name in OPERATORS
        ],
        "edges": [{"source": source, "target": target, "bytes": 8} for source, target in edges],
    }
    (folder / "graph.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("graph", "links", "message"),
    [
        ({"edges": [*LINE, ("c", "a")]}, None, "graph.json: .*must not form a cycle, got "),
        (
            {"forward_s": -1.0},
            None,
            r"graph.json: operators\.0\.forward_s: should be greater than or equal to 0, got -1.0$",
        ),
        (
            {},
            "0,1,0,1\n1,0,0,1\n2,3,0,1\n3,2,0,1\n",
            "links.csv: is not connected: there is no path from 0 to 2",
        ),
        (
            {},
            "0,1,0,1\n1,0,0,1\n",
            "links.csv: devices: must be at least 3, one for every replica of every stage",
        ),
    ],
    ids=["cycle", "negative time", "no path", "too few devices"],
)
def test_bad_input_is_one_message_that_names_the_file_and_the_key(
    folder: Path, graph: dict[str, object], links: str | None, message: str
) -> None:
    graph_file(folder, **graph)  # type: ignore[arg-type]
    if links is not None:
        (folder / "links.csv").write_text("source,target,latency_s,bandwidth_bytes_per_s\n" + links)
    assert_refused(message, "partition graph.json --topology links.csv --stages 3 -o stages.json")
    assert not (folder / "stages.json").exists()


def stages_file(folder: Path, **keys: object) -> str:
    """Write two stages of a profiled module, of which some keys are changed."""
    stage = {"forward_s": 1, "backward_s": 1, "parameter_bytes": 0}
    content: dict[str, object] = {
        "format": "phaze-stages",
        "version": 1,
        "model": "toy",
        "replicas": 1,
        "microbatches": 2,
        "recompute": False,
        "stages": [stage | {"operators": ["a"]}, stage | {"operators": ["b"]}],
        "edges": [{"source": 0, "target": 1, "bytes": 8}],
        "settings": {"partitioner": "full", "microbatch": 2, "bandwidth_bytes_per_s": 1},
        "profiled": {
            "module": "toy.py:make", "inputs": [{"kind": "real", "shape": [3]}], "device": "cpu", "step_s": 1,
        },
    }  # fmt: skip
    (folder / "stages.json").write_text(json.dumps(content | keys))
    return "stages.json"


def test_an_emitted_program_is_python_with_the_plan_in_it(folder: Path) -> None:
    stages_file(folder)
    invoke("map stages.json --topology links.csv --steps 10 -o map.json")
    text = invoke("emit stages.json --map map.json --for torch").stdout
    constants: dict[str, object] = {}
    exec(text.partition("# begin of the plan\n")[2].partition("# end")[0], constants)
    assert constants["STAGES"] == (("a",), ("b",))
    assert constants["INPUTS"] == (("real", (3,)),)
    assert constants["MICROBATCHES"] == constants["MICROBATCH"] == 2
    compile(text, "pipe.py", "exec")
    written = invoke("emit stages.json --map map.json --for torch -o pipe.py").stdout
    start = "torchrun --nproc-per-node 2 pipe.py --steps 20 --check"
    assert written == f"pipe.py: 2 stages × 1 replica; start it with {start}\n"
    assert Path("pipe.py").read_text() == text


def test_what_cannot_be_emitted_is_named(folder: Path) -> None:
    assert_refused("--for torch needs --map", "emit", stages_file(folder), "--for", "torch")
    invoke("map stages.json --topology links.csv --steps 10 -o map.json")
    assert_refused("--map goes with --for torch only", "emit stages.json --map map.json --for megatron")
    command = "emit stages.json --map map.json --for torch"
    stages_file(folder, recompute=True)
    assert_refused("recompute: must be false: the program stores all activations", command)
    stages_file(folder, profiled=None)
    assert_refused("stages.json: profiled: is missing", command)
    stages_file(folder, replicas=2)
    assert_refused("map.json: mapping: must have 2 stages of 2 replicas", command)
