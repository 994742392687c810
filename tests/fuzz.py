"""Run every command with unexpected files and values, and check its exit status and message.

`python -m tests.fuzz --cases 3000` prints a table by command: cases, tracebacks, half-written files, and exit
statuses other than those of config/commands.md. Cases are numbered, so that any can be repeated: `--only
1234` runs one.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from unittest.mock import patch

import yaml

from phaze.__main__ import main
from phaze.base.printed import LONGEST_REMARK, printable

LONG, LIMIT_S = "x" * 300, 120
EVIL = "e\x1b[31m\x9b2J\u202e"
CODE = (
    'x\nimport os\nos.system("touch PWNED")\n#', "x'''\nimport os\nos.system('touch PWNED')\n",
    'x"\r\nimport os\ros.system("touch PWNED")\r', 'x\u2028import os\u2029os.system("touch PWNED")\x85#',
)  # fmt: skip
"""Texts that would be code if a written file had them as they are."""
ODD: tuple[object, ...] = (
    None, True, 0, -1, 1.5, 1e300, float("inf"), float("nan"), 2**31, 2**63, 10**40, "", "x", "inf", "1e999",
    "../x", "/etc/passwd", EVIL, *CODE, "y" * 3000, "z " * 1500, "\u0000", "ä\n", LONG, [], {}, [[]], [None],
    {"": {}},
)  # fmt: skip
"""Unexpected values."""
TEXTS = tuple(str(value) for value in ODD if isinstance(value, (str, int, float)) and "\0" not in str(value))
FURTHER = (
    "--num-experts 8", "--multi-latent-attention", "--use-megatron-fsdp", "--fp8-format hybrid", "--swiglu",
    "--vocab-file vocab.txt", "--tp-comm-overlap", "--attention-backend unfused", "--transformer-impl local",
    "--recompute-granularity full", "--cp-comm-type a2a+p2p", "--window-size 5,0", "--mtp-num-layers 2",
    "CUDA_DEVICE_MAX_CONNECTIONS=8", "--hybrid-layer-pattern M*-|E/E", "--expert-model-parallel-size 4",
    "--overlap-grad-reduce",
)  # fmt: skip
"""Flags that a file of flags may have in addition."""
BROKEN = ("missing", "folder", "not utf-8", "empty", "loop", "long name", "nul", "blank")
"""Contents of broken input files."""
ENDS = {0, 1, 2, 3}
"""Exit statuses listed in config/commands.md."""

VERBS: dict[str, tuple[str, ...]] = {
    "plan": (
        "plan {model.yaml} --gpus 2xh100 --global-batch 4 --sequence 64 --top 1 -o {>plan.json}",
        "plan {config.json} --gpus 1xh100 --global-batch 2 --sequence 32 --fix dp=1 --json",
        "plan {model.yaml} --system {system.yaml} --devices 2 --global-batch 4 --explain tp=2 --gap 0.1",
        "plan gpt2 --gpus 1xh100 --batch-tokens 2k --sequence 1k --stack {stack.yaml} --precision fp8",
    ),
    "model": ("model {model.yaml} --sequence 64", "model {config.json} --json --system {system.yaml}"),
    "certify": ("certify {plan.json} --draws 2", "certify {plan.json} --draws 3 --seed 1 --json"),
    "emit": (
        "emit {plan.json} --for megatron -o {>flags.txt}",
        "emit {plan.json} --for bridge",
        "emit {plan.json} --for torchtitan -o {>titan.py}",
        "emit {plan.json} --for deepspeed -o {>speed.json}",
    ),
    "read": (
        "read {flags.txt} --for megatron --gpus 2xh100 -o {>run.csv}",
        "read {flags.txt} --for megatron --system {system.yaml} --json",
        "read {titan.py} --for torchtitan --gpus 2xh100 --model {model.yaml}",
        "read {titan.toml} --for torchtitan --gpus 2xh100 --model {model.yaml}",
        "read {titan-job.json} --for torchtitan --gpus 2xh100 --model {model.yaml}",
        "read {launch.sh} --for megatron --gpus 2xh100 --json",
        "read {flags.yaml} --for megatron --gpus 2xh100",
        "read {megatron.log} --for megatron --system h100",
        "read {speed.json} --for deepspeed --gpus 2xh100 --model {model.yaml} --layout sequence=64",
    ),
    "compare": (
        "compare {runs.csv} {plan.json} --row 1",
        "compare {flags.txt} {plan.json} --json",
        "compare {run.csv} {plan.json}",
    ),
    "space": ("space --area-limit-mm2 200", "space --json"),
    "extract": ("extract -m {model.yaml} --sequence 16", "extract -m {config.json} --microbatch 2 --json"),
    "estimate": ("estimate -m {model.yaml} --sequence 16 -a {device.yaml} --flat-bandwidth 1G",),
    "schedule": ("schedule -m {model.yaml} --sequence 16 --tensor 1 --system {flat.yaml}",),
    "place": (
        "place -m {model.yaml} --devices 4 --global-batch 8 --sequence 16 -o {>placed.json}",
        "place {instance.json} -o {>placement.json}",
        "place {piper.json} --planner piper --devices 2 --memory-gib 4",
    ),
    "simulate": (
        "simulate --runs {runs.csv} --system h100 -o {>out.csv}",
        "simulate --runs {runs.csv} --system {system.yaml} -o {>out.csv}",
        "simulate --runs {named.csv} --gpus 16xh100 -o {>out.csv}",
        "simulate {plan.json} --trace {>trace.json}",
    ),
    "validate": (
        "validate {runs.csv} --system h100 -o {>out.csv}",
        "validate {runs.csv} {run.csv} --system {system.yaml} --json",
        "validate {runs.csv} --system h100 --errors {>errors.csv}",
    ),
    "calibrate": (
        "calibrate {runs.csv} --system h100 -o {>fitted.yaml}",
        "calibrate {named.csv} --system h100 -o {>fitted.yaml}",
        "calibrate {runs.csv} --system {system.yaml} -o {>fitted.yaml} --json",
    ),
    "partition": (
        "partition {graph.json} --stages 2 --replicas 1 -o {>stages.json}",
        "partition {model.yaml} --devices 2 --sequence 16 --graph-out {>graph.json}",
    ),
    "map": (
        "map {stages.json} --topology {topology.yaml} --time-limit 5 --steps 100 --tries 100 -o {>map.json}",
        "map {plan.json} --steps 100 --tries 100 --time-limit 5",
        "map {stages.json} --topology {matrix.csv} --steps 10 --time-limit 5 --json",
    ),
    "export": ("export {table.parquet} -o {>out.csv}", "export {table.parquet} --format json"),
    "trace": ("trace {torch.yaml} -o {>graph.json}", "trace {config.json} -o {>graph.json} --sequence 16"),
    "status": ("status --configfile {study.yaml} --directory {folder}",),
}
"""Commands by verb: {name} is an input file, {>name} an output file."""
WEIGHTS = {
    "plan": 3, "emit": 6, "read": 6, "compare": 5, "calibrate": 2.5, "validate": 4, "status": 0.1, "trace": 2,
    "space": 0.5, "certify": 3, "model": 4, "simulate": 4, "place": 4,
}  # fmt: skip
"""Shares of the cases for verbs with a share other than 2."""


def _good(folder: Path) -> None:
    """Write a valid file of every name into a folder, most of them with phaze's own commands."""
    config = Path(__file__).parents[1] / "config"
    model = {
        "layers": 2, "hidden": 64, "heads": 4, "feed_forward": 256, "vocabulary": 512, "positions": "rotary",
        "position_count": 64, "fused_qkv": True, "untimed": {"rope_theta": 1e4, "note": "x"},
    }  # fmt: skip
    plain = {
        "model.yaml": model,
        "system.yaml": yaml.safe_load((config / "systems/h100.yaml").read_text()),
        "device.yaml": yaml.safe_load((config / "devices/tpu-v4-as-built.yaml").read_text()),
        "flat.yaml": yaml.safe_load((config / "systems/tpu-v4-pod.yaml").read_text()),
        "stack.yaml": yaml.safe_load((config / "stacks/megatron-core.yaml").read_text()),
        "topology.yaml": yaml.safe_load((config / "topologies/two-level.yaml").read_text()),
        "torch.yaml": yaml.safe_load((config / "torch/gpt2.yaml").read_text()),
        "study.yaml": {"models": ["tiny"]},
    }
    for name, content in plain.items():
        (folder / name).write_text(yaml.safe_dump(content))
    (folder / "config.json").write_text(
        (Path(__file__).parent / "data/huggingface/gpt2/config.json")
        .read_text()
        .replace('"n_layer": 12', '"n_layer": 2')
    )
    rows = [f"64,4,2,64,512,2,4,{tp},{2 // tp},{b},{0.01 * b}" for tp in (1, 2) for b in (1, 2)]
    head = "hidden,heads,layers,seq,vocab,gpus,global_batch,tp,dp,microbatch,measured_s"
    (folder / "runs.csv").write_text("\n".join([head, *rows]) + "\n")
    named = [f"llama-3.1-8b,2048,8,8,{tp},{3 + tp},true" for tp in (2, 4, 8)]
    (folder / "named.csv").write_text(
        "\n".join(["model,seq,gpus,global_batch,tp,measured_s,flash_attention", *named, ""])
    )
    (folder / "matrix.csv").write_text("0,1e9\n1e9,0\n")
    flags = {
        "num-layers": 2, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 64, "vocab-size": 512,
        "max-position-embeddings": 64, "micro-batch-size": 1, "global-batch-size": 4, "bf16": True,
    }  # fmt: skip
    (folder / "flags.yaml").write_text(
        yaml.safe_dump({"MODEL_ARGS": {f"--{k}": v for k, v in flags.items()}})
    )
    words = [f"--{name} {value}" for name, value in flags.items() if value is not True]
    lines = [
        "TP=2",
        "ARGS=(",
        *words,
        ")",
        "torchrun a.py ${ARGS[@]} --bf16 --tensor-model-parallel-size ${TP:-1}",
    ]
    (folder / "launch.sh").write_text("\n".join([*lines, ""]))
    listed = [f"  {name.replace('-', '_')} ..... {value}" for name, value in flags.items()]
    (folder / "megatron.log").write_text(
        "\n".join(["---- arguments ----", *listed, "---- end of arguments", ""])
    )
    job = {"training": {"seq_len": 64, "local_batch_size": 2}, "activation_checkpoint": {"mode": "none"}}
    (folder / "titan-job.json").write_text(json.dumps(job))
    (folder / "titan.toml").write_text(
        "[training]\nseq_len = 64\nlocal_batch_size = 2\n[activation_checkpoint]\nmode = 'none'\n"
    )
    speed = {"train_batch_size": 4, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    (folder / "speed.json").write_text(json.dumps(speed))
    formats = (config / "formats.md").read_text()
    (folder / "piper.json").write_text(formats.split("```json\n")[1].split("```")[0])
    layer = {"parameterSize": 1e6, "activationSize": 1e6, "optimalLatencyFw": 1e-3, "optimalLatencyBw": 2e-3}
    nodes = [{"id": i, **layer, "isTensorParallelized": False} for i in range(2)]
    instance = {
        "maxMemoryPerDevice": 1e10, "maxDevices": 4, "bandwidth": 1e10, "mbsInBatch": 8,
        "nodes": {"1": nodes}, "edges": {"1": [{"sourceId": 0, "destId": 1, "communicationCost": 1e5}]},
        "activationRecomputation": False, "optimizerAlgorithm": "SGD",
    }  # fmt: skip
    (folder / "instance.json").write_text(json.dumps(instance))
    from phaze.commands.answers import read_architecture
    from phaze.tables import Architectures

    Architectures.save(read_architecture("tpu-v4"), folder / "table.parquet")
    for command in (
        "plan model.yaml --gpus 2xh100 --global-batch 4 --sequence 64 --top 2 -o plan.json",
        "emit plan.json --for megatron -o flags.txt",
        "plan model.yaml --gpus 2xh100 --global-batch 4 --sequence 64 --runtime torchtitan -o titan.json",
        "emit titan.json --for torchtitan -o titan.py",
        "read flags.txt --for megatron --gpus 2xh100 -o run.csv",
        "partition model.yaml --stages 2 --replicas 1 --sequence 16 --graph-out graph.json -o stages.json",
    ):
        status, told, _ = run([str(folder / word) if "." in word else word for word in command.split()])
        assert status == 0, (command, told)


class TooLongError(Exception):
    """Raised if a case takes too long."""


@contextmanager
def _limited() -> Iterator[None]:
    def stop(_: int, __: FrameType | None) -> None:
        raise TooLongError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def run(arguments: list[str]) -> tuple[int, str, str]:
    """Exit status of a command run in this process, its standard error and its standard output."""
    told, printed = io.StringIO(), io.StringIO()
    with (
        redirect_stdout(printed),
        redirect_stderr(told),
        patch("sys.argv", ["phaze", *arguments]),
        _limited(),
    ):
        try:
            status = main()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
    return status, told.getvalue(), printed.getvalue()


@dataclass
class Case:
    """Command with one error in it."""

    verb: str
    folder: Path
    arguments: list[str] = field(default_factory=list)
    wrong: str = ""
    outs: list[Path] = field(default_factory=list)
    must_fail: bool = False
    """True if an input file is empty or broken, so that the command must fail."""


class Fuzzer:
    """Draw and run cases in a folder with valid files."""

    def __init__(self, good: Path, work: Path) -> None:
        self.good, self.work = good, work

    def case(self, number: int, verb: str | None = None) -> Case:
        """Case with this number, with its files."""
        draw = random.Random(number)
        chosen = verb or draw.choices([*VERBS], [WEIGHTS.get(name, 2) for name in VERBS])[0]
        template = draw.choice(VERBS[chosen]).split()
        folder = self.work / str(number)
        folder.mkdir()
        shutil.copy(self.good / "run.yaml", folder)  # the model that run.csv names
        reads = [i for i, word in enumerate(template) if re.fullmatch(r"\{[^>]+\..+\}", word)]
        wrong = draw.choice(reads) if reads and draw.random() < 0.85 else -1
        case = Case(chosen, folder)
        for i, word in enumerate(template):
            name = word.strip("{>}")
            if word.startswith("{>"):
                case.outs.append(folder / name)
                if draw.random() < 0.3:
                    (folder / name).write_text("as it was")
                case.arguments.append(str(folder / name))
            elif word.startswith("{") and name != "folder":
                case.arguments.append(
                    str(self._file(draw, name, case) if i == wrong else self._copy(name, case))
                )
            else:
                case.arguments.append(str(folder) if name == "folder" else word)
        if wrong < 0:
            self._option(draw, case)
        return case

    def _copy(self, name: str, case: Case) -> Path:
        path = case.folder / f"good-{name}"
        path.write_bytes((self.good / name).read_bytes())
        return path

    def _file(self, draw: random.Random, name: str, case: Case) -> Path:
        """Write a bad file, and return its path."""
        text, path = (self.good / name).read_bytes(), case.folder / name
        kind = draw.choice((*BROKEN, "headings", "truncated", "bytes", *["values"] * 20))
        case.wrong, case.must_fail = f"{name}: {kind}", kind in BROKEN
        if kind == "missing":
            return case.folder / draw.choice((name, f"{EVIL}{path.suffix}", f"no/such/{name}"))
        if kind == "long name":
            return case.folder / f"{LONG}{path.suffix}"
        if kind == "folder":
            path.mkdir()
        elif kind == "loop":
            path.symlink_to(name)
        elif kind == "headings":
            path.write_bytes(text.split(b"\n")[0] + b"\n")
        elif kind == "truncated":
            path.write_bytes(text[: draw.randrange(len(text))])
        elif kind == "bytes":
            changed = bytearray(text)
            for _ in range(draw.randint(1, 4)):
                changed[draw.randrange(len(text))] = draw.randrange(256)
            path.write_bytes(bytes(changed))
        elif kind == "values":
            path.write_bytes(_changed(draw, path.suffix, text, case))
        else:
            path.write_bytes(
                {"not utf-8": b"\xff\xfe\x00a", "empty": b"", "nul": b"\0" * 99, "blank": b" \n\n"}[kind]
            )
        return path

    def _option(self, draw: random.Random, case: Case) -> None:
        """Replace the value of an option, add one, or name a file that cannot be written."""
        words = case.arguments
        outs = {*map(str, case.outs)}
        places = [i for i in range(2, len(words)) if words[i - 1].startswith("-") and words[i] not in outs]
        kind = draw.choice(("value", "value", "unknown", "out"))
        if kind == "out" and case.outs:
            (case.folder / "loop.json").symlink_to("loop.json")
            name = draw.choice((LONG, "no/such/x.json", ".", "/dev/null", EVIL, "loop.json", words[1]))
            words[words.index(str(case.outs[0]))] = str(case.folder / name)
            case.outs = []
        elif kind == "unknown" or not places:
            words.append(draw.choice(("--nothing", f"--{EVIL}", "--" + "y" * 3000, *TEXTS)))
        else:
            words[draw.choice(places)] = draw.choice(TEXTS)
        case.wrong = f"option: {kind}"

    def check(self, case: Case) -> Counter[str]:
        """Run a case, and return the faults of its result."""
        before = {path: path.read_bytes() for path in case.outs if path.is_file()}
        found = Counter({"answered": 0})
        try:
            status, told, printed = run(case.arguments)
        except TooLongError:
            sys.stderr.write(f"\n{case}\nends not within {LIMIT_S} s\n")
            return Counter({"too long": 1})
        except BaseException:  # noqa: BLE001 (whatever it is, a user would see its traceback)
            sys.stderr.write(f"\n{case}\n{traceback.format_exc()}\n")
            return Counter({"tracebacks": 1})
        problem = _wrong_status(case, status, told)
        if problem:
            sys.stderr.write(f"\n{case}\nstatus {status}: {problem}\n{told[-600:]!r}\n")
            found["wrong status"] += 1
        found["answered"] += status in (0, 3)
        if problem := self._half_written(case, status, before):
            sys.stderr.write(f"\n{case}\nstatus {status}: {problem}\n{told[-600:]!r}\n")
            found["half-written"] += 1
        if case.verb == "emit" and any(map(_has_code, (printed, *_texts(case.outs)))):
            sys.stderr.write(f"\n{case}\ncode of an input is in its output\n")
            found["runs code"] += 1
        return found

    def _half_written(self, case: Case, status: int, before: dict[Path, bytes]) -> str:
        """Outputs that are incomplete, or were written although the command failed."""
        left = [str(path) for path in case.folder.rglob("*.part")]
        if left:
            return f"left {left}"
        for path in case.outs:
            now = path.read_bytes() if path.is_file() else None
            if status in (1, 2) and now != before.get(path):
                return f"{path} was written"
            if now is not None and now != before.get(path) and not _whole(path, now):
                return f"{path} is not whole"
        return ""


def _texts(outs: list[Path]) -> Iterator[str]:
    """Yield the contents of the outputs that exist."""
    yield from (path.read_text(errors="replace") for path in outs if path.is_file())


def _has_code(text: str) -> bool:
    """True if a line of a written file is the code of one of `CODE`."""
    return any(line.startswith(("import os", "os.system")) for line in text.splitlines())


def _whole(path: Path, content: bytes) -> bool:
    try:
        text = content.decode()
        json.loads(text) if path.suffix == ".json" else None
    except ValueError:
        return False
    return bool(text.strip())


def _wrong_status(case: Case, status: int, told: str) -> str:
    """Deviations of a status and its message from the documentation."""
    known = ("progress: ", "plan: first plan", "plan: better plan", "plan: stopped at")
    lines = [line for line in told.splitlines() if not line.startswith(known)]
    if status not in ENDS or (status == 3 and case.verb != "plan"):
        return "is none that is documented"
    if case.must_fail and status in (0, 3):
        return "but what it reads holds nothing"
    if status == 1 and not any(line.startswith("error: ") for line in lines):
        return "but there is no message"
    if status == 2 and "error: " not in told:
        return "but there is no message"
    names = (case.folder.name, f"error: {case.verb}")
    if status == 1 and "option" not in case.wrong and not any(name in told for name in names):
        return "but the message names neither file nor command"
    if status == 0 and any(line.startswith("error: ") for line in lines):
        return "but there is a message"
    if told != printable(told) or max(map(len, lines), default=0) > 2 * LONGEST_REMARK:
        return "the message is not fit for a terminal"
    return "" if "Traceback" not in told else "prints a traceback"


def _changed(draw: random.Random, suffix: str, text: bytes, case: Case) -> bytes:
    """Content of a valid file with some unexpected values."""
    change: Callable[[random.Random, str, Case], str] = {
        ".json": _changed_json, ".yaml": _changed_yaml, ".csv": _changed_csv
    }.get(suffix, _changed_words)  # fmt: skip
    if suffix in (".json", ".yaml") and draw.random() < 0.4:
        case.wrong += " code"
        return _with_code(draw, text.decode()).encode()
    if suffix == ".parquet":
        return text[: draw.randrange(len(text))] + draw.randbytes(20)
    return change(draw, text.decode(), case).encode("utf-8", "surrogatepass")


def _changed_json(draw: random.Random, text: str, case: Case) -> str:
    tree = json.loads(text)
    tree.pop("sha256", None)  # else every change of a plan would be refused for it
    return json.dumps(_changed_tree(draw, tree, case))


def _changed_yaml(draw: random.Random, text: str, case: Case) -> str:
    return yaml.safe_dump(_changed_tree(draw, yaml.safe_load(text), case), allow_unicode=True)


def _changed_tree(draw: random.Random, tree: object, case: Case) -> object:
    for _ in range(draw.choice((1, 1, 2))):
        node, path = tree, ""
        while True:
            keys: list[object] = list(node) if isinstance(node, dict) else list(range(len(node)))  # type: ignore[arg-type]
            if not keys:
                break
            key = draw.choice(keys)
            path += f".{key}"
            below = node[key]  # type: ignore[index]
            if not isinstance(below, (dict, list)) or draw.random() < 0.2:
                how = draw.choice(("odd", "odd", *["near"] * 5, "delete", "rename"))
                case.wrong += f"{path} {how}"
                _put(draw, node, key, how)
                break
            node = below
    return tree


def _with_code(draw: random.Random, text: str) -> str:
    """Valid document, in JSON as in YAML, with one of `CODE` as a key or as a text."""
    tree, texts, mappings = yaml.safe_load(text), [], []
    tree.pop("sha256", None)
    nodes = [tree]
    for node in nodes:
        mappings += [node] if isinstance(node, dict) else []
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            texts += [(node, key)] if isinstance(value, str) else []
            nodes += [value] if isinstance(value, (dict, list)) else []
    if texts and draw.random() < 0.5:
        node, key = draw.choice(texts)
        node[key] = draw.choice(CODE)
    elif mappings:
        draw.choice(mappings)[draw.choice(CODE)] = "v"
    return json.dumps(tree)


def _put(draw: random.Random, node: object, key: object, how: str) -> None:
    """Change a value of a mapping or list: replace, double, halve, remove, or rename its key."""
    value = node[key]  # type: ignore[index]
    if how == "near" and isinstance(value, (int, float)) and not isinstance(value, bool):
        node[key] = draw.choice((value * 2, value + 1, value - 1, -value, float(value) * 1.5))  # type: ignore[index]
    elif how == "near" and isinstance(value, bool):
        node[key] = not value  # type: ignore[index]
    elif how in ("odd", "near"):
        node[key] = draw.choice(ODD)  # type: ignore[index]
    else:
        del node[key]  # type: ignore[attr-defined]
        if how == "rename" and isinstance(node, dict):
            node[draw.choice((EVIL, *CODE, "y" * 3000, "x", f"{key}s"))] = value


def _changed_csv(draw: random.Random, text: str, case: Case) -> str:
    rows = [line.split(",") for line in text.splitlines()]
    for _ in range(draw.randint(1, 2)):
        i = draw.randrange(len(rows))
        j = draw.randrange(len(rows[i]))
        near = (rows[i][j] + "0", "", "1", "2", "3", "4", "64")
        rows[i][j] = draw.choice((*near, *near, *TEXTS, '"'))
        case.wrong += f" {i}:{j}"
    return "\n".join(map(",".join, rows)) + draw.choice(("", "\n", "\n,,,\n"))


def _changed_words(draw: random.Random, text: str, case: Case) -> str:
    words = re.split(r"(\s+)", text)
    for _ in range(draw.randint(1, 3)):
        i = draw.randrange(len(words))
        case.wrong += f" {words[i]!r}"
        near = (words[i] * 2, "", "1", "2", "4", "--pipeline-model-parallel-size 2", *FURTHER)
        words[i] = draw.choice((*near, *near, *TEXTS, f"--{EVIL}"))
    return "".join(words)


TROUBLES = ("tracebacks", "half-written", "wrong status", "too long", "runs code")


def fuzz(
    folder: Path, numbers: range, least: int = 0, verbs: Collection[str] = VERBS
) -> dict[str, Counter[str]]:
    """Counts of cases and faults by verb, with a minimum number of cases for some verbs."""
    (good := folder / "good").mkdir()
    (work := folder / "work").mkdir()
    found: dict[str, Counter[str]] = {verb: Counter() for verb in VERBS}
    _good(good)
    fuzzer = Fuzzer(good, work)

    def one(number: int, verb: str | None = None) -> None:
        case = fuzzer.case(number, verb)
        found[case.verb] += Counter({"cases": 1}) + fuzzer.check(case)
        shutil.rmtree(case.folder)

    for number in numbers:
        one(number)
    for place, verb in enumerate(verb for verb in verbs if verb != "status"):
        for more in range(max(least - found[verb]["cases"], 0)):
            one(10**6 * (place + 1) + more, verb)
    return found


def table(found: dict[str, Counter[str]]) -> str:
    """Table of the counts."""
    columns = ("answered", *TROUBLES)
    rows = {**found, "all": sum(found.values(), Counter())}
    lines = [f"{'verb':<12}{'cases':>8}" + "".join(f"{name:>14}" for name in columns)]
    lines += [
        f"{verb:<12}{counts['cases']:>8}" + "".join(f"{counts[name]:>14}" for name in columns)
        for verb, counts in rows.items()
    ]
    return "\n".join(lines)


def _command() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--least", type=int, default=0, help="cases of every verb but status")
    parser.add_argument("--only", type=int, help="number of the one case to run")
    asked = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (8 * 2**30, resource.RLIM_INFINITY))
    numbers = range(asked.cases) if asked.only is None else range(asked.only, asked.only + 1)
    with tempfile.TemporaryDirectory() as folder:
        found = fuzz(Path(folder), numbers, asked.least)
    sys.stdout.write(table(found) + "\n")
    return int(any(counts[name] for counts in found.values() for name in TROUBLES))


if __name__ == "__main__":
    sys.exit(_command())
