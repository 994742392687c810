"""Every mistake is told in one line, and the way to mend it, if there is one, in another."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from phaze.__main__ import main
from phaze.base.errors import PhazeError
from phaze.commands.output import refuse_outputs
from tests.commands import documented

MINE = "layers: 4\nhiddens: 8\nhidden: 8\nheads: 1\nfeed_forward: 8\nvocabulary: 8\nposition_count: 8\n"
HEADINGS = "hidden,heads,layers,seq,vocab,gpus,global_batch\n"
FILES = {"mine.yaml": MINE, "runs.csv": MINE, "in.yaml": "as it was", "stages.json": "{}"}
FILES |= {"headings.csv": HEADINGS, "run.csv": f"{HEADINGS}64,4,4,64,512,8,8\n"}
"""Inputs of the mistakes, in addition to the examples of config/formats.md and links to themselves."""
PLAN, SWEEP = "plan gpt2 --gpus 8xh100", "place -m gpt2 --devices 8 --global-batch 32 --sweep"
PIPER, PARTITION = "place piper.json --planner piper -o out.json", "partition graph.json -o out.json"
LONG, WHOLE, SIZES = "x" * 300, 10**40, ("0", "-1", "nan", "inf")
OVERWRITES = """
place in.yaml -o in.yaml
place --model in.yaml -o in.yaml
place --model gpt2 --system in.yaml -o in.yaml
plan in.yaml --gpus 8xh100 -o in.yaml
partition in.yaml --stages 2 -o in.yaml
partition in.yaml --stages 2 --graph-out in.yaml
map in.yaml --topology two-level -o in.yaml
map s.json --topology in.yaml --times in.yaml
simulate in.yaml --trace in.yaml
simulate --runs in.yaml --system h100 -o in.yaml
validate in.yaml -o in.yaml
validate in.yaml --errors in.yaml
calibrate in.yaml --system h100 -o in.yaml
calibrate runs.csv --system in.yaml -o in.yaml
export in.yaml -o in.yaml
trace in.yaml -o in.yaml
"""
REFUSED = (
    *((command, "output would overwrite an input") for command in OVERWRITES.split("\n")[1:-1]),
    *((f"estimate -m gpt2 --flat-bandwidth={size}", f"must be a .* > 0, got {size}") for size in SIZES),
    *((f"{PLAN} --seconds {size}", f"--seconds: must be a finite number > 0, got {size}") for size in SIZES),
    ("map s.json --topology two-level -o x.svg --picture x.svg", "two outputs have this name"),
    ("partition g.json -o x --graph-out ./x", "two outputs have this name"),
    ("simulate p.json --trace x.svg --picture x.svg", "two outputs have this name"),
    ("simulate p.parquet", "p.parquet: must be a plan written by `phaze plan -o`, got a table of a study"),
    (
        "map p.parquet --topology two-level",
        "p.parquet: must be a plan written by `phaze plan -o`, got a table",
    ),
    ("simulate p.json --system h100", "--system applies to --runs only"),
    ("plan gpt2-xxl", "there is no model 'gpt2-xxl'; did you mean gpt2-xl or gpt2?"),
    ("plan gpt2", "plan: the cluster is missing; pass --gpus, such as --gpus 256xH100"),
    ("plan gpt2 --system h10 --global-batch 8", "there is no system"),
    ("plan gpt2 --gpus h100", "must be a number, x and a system, such as 256xH100, got h100"),
    ("plan gpt2 --system h100 --gpus 64", "--gpus 64xh100"),
    ("partition gpt2 --gpus 0xh100", "must be a number, x and a system, such as 256xH100, got 0xh100"),
    (f"{PLAN} --system h100", "--gpus 8xh100 already sets --system and --devices; leave these out"),
    ("partition gpt2 --gpus 2xh100 --devices 2", "already sets --system and --devices; leave these out"),
    (f"{PLAN} --stack megatron-cor", "there is no stack"),
    (f"{PLAN} --fix tpp=2", r"--fix: must be FIELD=VALUE pairs .* got 'tpp=2'"),
    (f"{PLAN} --fix recomputed=1", "got 'recomputed=1'; did you mean recompute?"),
    (f"{PLAN} --explain tp", "--explain: must be FIELD=VALUE pairs"),
    (f"{PLAN} --explain pp=2.5", r"--explain: pp: must be a whole number from 1 to .*, got 2\.5"),
    (f"{PLAN} --fix tp=8,pp=2", r"tp=8,pp=2: 8 x 2 = 16 must divide the number of devices, 8"),
    ("plan gpt2 --system h100 --devices 8,16 --fewest", "--fewest accepts one number of dev"),
    (f"{PLAN} --fix pp={10**20}", "pp: must be a whole number from 1 to"),
    (f"{PLAN} --explain schedule=best", r"schedule: must be one of .*, got best"),
    (f"{PLAN} --precision nvfp4", "^precision: device h100-80gb multiplies .* got nvfp4"),
    (f"{PLAN} --precision fp8 --runtime torchtitan", "torchtitan: precision must be one of .*, got fp8"),
    (f"{PLAN} --sequence 2048", "sequence: 2048 must be > 0 and at most"),
    ("plan gpt2 --system h100 --devices 8,x", "--devices: must be"),
    ("plan gpt2 --system h100 --devices 12", "a multiple of 8"),
    ("plan resnet-50 --gpus 8xh100", "must be a transformer"),
    ("plan mixtral-8x7b --gpus 8xh100 --lora 16", "--lora: mixtral-8x7b.*must not be given for a model with"),
    ("plan gpt2 --gpus 8xtpu-v5p --runtime megatron", "runtime: must be maxtext on tpu-v5p"),
    (f"{PLAN} --load 1.5", "^plan: --load: gpt2 has no experts"),
    (f"{PLAN} --price 2", "--price needs --tokens"),
    (f"{PLAN} --tokens 1e9 --checkpoint 60", "--checkpoint needs --mtbf, the device-hours between failures"),
    (f"{PLAN} --tokens 1e9 --days -1", "--days: must be a finite number > 0"),
    (f"{PLAN} --sequence 1k --batch-tokens 900", "must be at least 1000, the tokens of one sample, got 900"),
    (f"{PLAN} --batch-tokens 9k --global-batch 8", "--global-batch .* and --batch-tokens both set the batch"),
    ("place -m gpt2 --batch-tokens 9k --global-batch 8", "and --batch-tokens both set the batch"),
    ("plan mine.yaml --gpus 8xh100", "hiddens: is not a known key, got 8; did you mean hidden?"),
    ("model mine.yaml", "hiddens: is not a known key, got 8; did you mean hidden?"),
    ("model config.json", "Too many levels of symbolic links"),
    ("models gpt9", "no row contains 'gpt9'"),
    ("emit none.json --for megatron", "none.json: cannot be read: No such file"),
    (f"read {LONG} --for megatron --gpus 8xh100", "File name too long"),
    ("place", "give either an instance file or --model"),
    ("place --planner piper", "give either an instance file or --model"),
    ("place --model gpt9", "there is no model 'gpt9'"),
    ("place --model semantic-fpn", "plan: semantic-fpn"),
    ("place --model gpt2 --architecture tpu-v9", "there is no architecture 'tpu-v9'"),
    ("place -m gpt2 -a tpu-v4,tpu-v9", "there is no architecture 'tpu-v9'"),
    ("place -m gpt2 -a tpu-v4,tpu-v4-as-built -o x.json", "-o applies to one architecture only"),
    ("place --model gpt2 --system moon", "there is no system 'moon'"),
    ("plan gpt2 --gpus 16xphaze-common", "no system 'phaze-common'; it is an architecture; name a system"),
    ("place --model gpt2 --fix tp=5,pp=1", "--fix: tp=5"),
    ("place --model gpt2 --devices 4097", "devices must be at most 4096, as it is a torus, got 4097"),
    (
        "place -m gpt2 -a tpu-v4,tpu-v4-as-built --devices 8,16",
        "--devices: must be one number for a table, got 2",
    ),
    ("place --model gpt2 --sequence 4096", "sequence: 4096 must be"),
    ("place --model gpt2 --planner piper", "--planner piper needs an instance file"),
    ("place --model gpt2 --exactly", "--exactly applies to --planner piper only"),
    ("place x.json --memory-gib 8", "--memory-gib applies to --planner piper only"),
    ("place x.json --levels 8@300", "--levels applies to --planner piper only"),
    ("place x.json --devices 3", "--devices does not apply to the instance"),
    ("place x.json --planner piper --fix tp=3", "--fix does not apply to the instance"),
    ("place piper.json --planner piper --devices x", "--devices: must be a whole number >= 1, got x"),
    ("place piper.json --planner piper --devices 2,4", "accepts one number of devices, got 2,4"),
    ("place x.json --planner piper --bandwidth-gib 0", "--bandwidth-gib: must be from 1e-12 to 1e"),
    ("place x.json --planner piper --memory-gib inf", r"to 1e\+18, got inf"),
    (f"place x.json --planner piper --devices {10**9}", "--devices: must be from 1 to"),
    ("place none.json --planner piper", "none.json: cannot be read"),
    ("place /dev/zero", r"cannot be read: is a device, not a file \(/dev/zero\)"),
    ("place /dev/zero --planner piper", r"cannot be read: is a device, not a file \(/dev/zero\)"),
    (f"{PIPER} --levels 8x300", "'8x300' is not a level, allowed are"),
    (f"{PIPER} --levels 8@300,", "'' is not a level"),
    (f"{PIPER} --levels 0@300", "'0@300' is not a level"),
    (f"{PIPER} --levels 8@1e400", "'8@1e400' is not a level"),
    (f"{PIPER} --levels 2000@300,2000@25", "make 4000000 devices, allowed are 1048576"),
    (f"{PIPER} --levels 8@300 --devices 8", "--devices: not together with --levels"),
    (f"{PIPER} --levels 8@300 --baselines", "--baselines: not together with --levels"),
    (f"{SWEEP} num_tc", "must be KEY=VALUE,VALUE such as num_tc=4,8"),
    (f"{SWEEP} num_tcs=4", "is not a key of an architecture; did you mean num_tc"),
    (f"{SWEEP} num_tc=x", "num_tc: must be a whole number"),
    ("validate --all --part products", "--all: --part prints no table of sources"),
    ("validate --all --support", "--all: --support prints no table of sources"),
    (f"{SWEEP} num_tc=1 --sweep num_vc=1 --sweep pe_x=8", "at most 2 keys, got 3"),
    ("estimate -m gpt2 --sort latency", "--sort: latency: is not a column; did you mean latency_s or lat"),
    ("trace config/torch/resnet-50.yaml -o x.json", "allow it with --run-code"),
    ("trace config/torch/resnet-50.yaml --run-code", "give one spec and -o for its graph, or pass --compare"),
    ("trace config/torch/resnet-50.yaml config/torch/gpt2.yaml -o x.json", "give one spec and -o"),
    ("trace config/models/gpt2.yaml -o x.json --run-code", "gpt2.yaml: torch: Field required"),
    (f"{PARTITION} --stages 4 --replicas 1", "4 stages need as many operators, the graph has 3"),
    (f"{PARTITION} --stages 2 --replicas 4 --devices 4", "need 8 devices, there are 4"),
    (f"{PARTITION} --stages 8 --devices 4", "4 devices cannot be shared evenly by 8 stages"),
    (f"{PARTITION} --stages 2", "needs the stages and the replicas, or the devices"),
    (f"{PARTITION} --stages 2 --replicas 1 --memory-gib 0.1", "operator embedding needs 8e"),
    (f"{PARTITION} --stages 2 --replicas 1 --memory-gib -1", "--memory-gib: must be a finite number > 0"),
    (f"{PARTITION} --stages 2 --replicas 1 --memory-gib nan", "--memory-gib: must be a finite number > 0"),
    (f"{PARTITION} --stages 2 --replicas 1 --bandwidth-gbps 0", "--bandwidth-gbps: must be a finite number"),
    (f"{PARTITION} --devices 4 --microbatch 2", "--microbatch applies to models"),
    (f"{PARTITION} --devices 4 --system paper", "--system applies to models"),
    (f"{PARTITION} --devices 4 --sequence 2", "--sequence applies to models"),
    ("partition graph.json --stages 4 --replicas 1 -o .", "is a folder"),
    ("partition none.json --devices 2", r"none\.json: cannot be read"),
    ("partition no-such-model --devices 2", "no-such-model"),
    ("partition resnet-50 --stages 2 --replicas 1 -o none/out", "is not a folder"),
    ("partition bert-base --system=", "there is no system ''"),
    (f"partition {LONG}.json --stages 2", "File name too long"),
    ("map loop.yaml --topology two-level", "Too many levels of symbolic links"),
    ("map stages.json --topology loop.csv", "Too many levels of symbolic links"),
    ("validate headings.csv --system h100", "headings.csv: has no run below its headings"),
    ("validate run.csv", "of 1 runs none can be predicted: system must be given, in the row or with -"),
    (f"calibrate stages.json --system h100 -o {LONG}", "File name too long"),
    ("export none.parquet", "none.parquet"),
    ("export /dev/zero", r"cannot be read as a table: is a device, not a file \(/dev/zero\)"),
    (f"status --configfile {LONG}", "File name too long"),
    ("new-study --model gpt2 -a tpu-v9", "there is no architecture 'tpu-v9'"),
    ("new-study --model semantic-fpn", "is not a chain of layers"),
    ("new-study --model gpt2 --sequence 4096", "sequence: 4096"),
    ("new-study --model gpt2 -o my.json", "must end in .yaml"),
)
"""Commands with exit status 1, and what they say; after a semicolon how it can be mended."""
UNKNOWN = (
    ("plam", r"No such command 'plam'\.; did you mean plan or place\?"),
    ("--confi x", r"No such option: --confi; did you mean --config\?"),
    ("plan gpt2 --gpu 8xh100", r"No such option: --gpu; did you mean --gpus\?"),
    ("plan", r"Missing argument 'model'\.; Usage: .* plan \[OPTIONS\]"),
    (f"{PLAN} more", r"unexpected extra argument.*; Usage: .* plan \[OPTIONS\]"),
    (f"{PLAN} --rank x", "'--rank': 'x' is not one of 'prudent', 'expected'"),
    (f"{PLAN} --tokens 4X", "'--tokens': must be a number"),
    ("compare runs.csv", r"Missing argument 'PLAN'\.; Usage: .* compare \[OPTIONS\]"),
    (
        "emit p.json --for maxtext",
        "'maxtext' is not one of 'bridge', 'torch', 'megatron', 'torchtitan', 'deepspeed'",
    ),
    ("export p.parquet --format xml", "is not one of 'csv', 'json'"),
    (f"extract --model gpt2 --microbatch {WHOLE}", "less than or equal to"),
    (f"schedule --model gpt2 --tensor {2**40}", "less than or equal to"),
    (f"map s.json --seed {WHOLE}", "less than or equal to"),
    (f"certify p.json --seed {WHOLE}", "less than or equal to"),
    (f"trace config.json -o x.json --sequence {2**31}", "less than or equal to"),
)
"""Commands with exit status 2, which are not understood."""


@pytest.mark.parametrize(
    ("command", "message", "status"), [*((*row, 1) for row in REFUSED), *((*row, 2) for row in UNKNOWN)]
)
def test_a_mistake_is_one_line_and_its_fix_another_and_nothing_is_written(
    command: str,
    message: str,
    status: int,
    tmp_path: Path,
    project_root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for place, name in enumerate(("piper.json", "graph.json")):
        documented(place, tmp_path).rename(tmp_path / name)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name in ("loop.yaml", "loop.csv", "config.json", "config"):
        (tmp_path / name).symlink_to(project_root / "config" if name == "config" else name)
    before = {path.name: path.is_file() and path.read_text() for path in tmp_path.iterdir()}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["phaze", *command.split()])
    assert main() == status
    told = capsys.readouterr().err.splitlines()
    lines = [line.partition(": ") for line in told if not line.startswith(("Defaults used", "progress"))]
    assert lines[0][0] == "error"
    assert {label for label, _, _ in lines[1:]} <= {"error", "help"}
    assert re.search(message, "; ".join(text for _, _, text in lines))
    assert {path.name: path.is_file() and path.read_text() for path in tmp_path.iterdir()} == before


def test_a_file_is_known_by_any_of_its_names(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("{}")
    (tmp_path / "link").symlink_to(path)
    os.link(path, tmp_path / "hard")
    for name in ("link", "hard", "./a.json"):
        with pytest.raises(PhazeError, match="output would overwrite an input"):
            refuse_outputs(tmp_path / name, reads=(path,))
    refuse_outputs(tmp_path / "b.json", tmp_path / "gpt2", reads=(path, "gpt2", None))


def test_an_error_keeps_its_help_in_a_place_and_in_one_line() -> None:
    error = PhazeError("no x", "give one").under("file")
    assert (error.wrong, error.fix, str(error)) == ("file: no x", "give one", "file: no x; give one")
    assert str(PhazeError("no x")) == "no x"


@pytest.mark.parametrize("folder", ["", "a/", "x" * 50 + "/"])
def test_an_error_begins_with_what_is_wrong(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "mine.yaml").write_text(MINE)
    for path in (f"{folder}mine.yaml", f"{tmp_path}/{folder}mine.yaml"):
        command = [sys.executable, "-m", "phaze", "model", path]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 1
        first = done.stderr.splitlines()[0]
        message = "hiddens: is not a known key, got 8"
        short = f"error: {path}: {message}"
        assert first == (short if len(path) < 40 and path[0] != "/" else f"error: {message} ({path})")


def test_labels_are_styled_on_a_terminal_only() -> None:
    command = [sys.executable, "-m", "phaze", "plam"]
    plain = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    assert plain.splitlines()[0] == "error: No such command 'plam'."
    ours, theirs = pty.openpty()
    colours = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    subprocess.run(command, stderr=theirs, check=False, env=colours)
    os.close(theirs)
    told = os.read(ours, 4096).decode()
    os.close(ours)
    assert "\x1b[31m\x1b[1merror:\x1b[0m No such command 'plam'." in told
    assert "\x1b[36m\x1b[1mhelp:\x1b[0m did you mean plan or place?" in told


@pytest.mark.parametrize(
    ("closed", "status", "told"),
    [
        (">&-", 1, "error: cannot print the answer: standard output is closed\n"),
        ("2>&-", 0, ""),
        (">&- 2>&-", 1, ""),
    ],
)
def test_closed_streams_give_no_traceback(closed: str, status: int, told: str) -> None:
    command = f"{sys.executable} -m phaze stacks {closed}"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, told)
