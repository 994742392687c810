"""The training command of a script, as a shell would run it where it can be known without one."""

import pytest

from phaze.base.errors import PhazeError
from phaze.runtimes.flags import parse_flags, refuse_unexpanded
from phaze.runtimes.settings import settings_of
from phaze.runtimes.shell import command_of

LAUNCH = "torchrun pretrain_gpt.py"


def arguments(script: str) -> list[str]:
    """Words after the program, with a question mark before flags that are set conditionally."""
    words = [word.replace("\x01", "?") for word in command_of(script)]
    return words[words.index("pretrain_gpt.py") + 1 :]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"TP=8\n{LAUNCH} --tp $TP --pp ${{TP}}", ["--tp", "8", "--pp", "8"]),
        (f"export TP=8 PP=2; {LAUNCH} --tp $TP --pp $PP", ["--tp", "8", "--pp", "2"]),
        (f"{LAUNCH} --tp ${{TP:-8}} --pp ${{PP:-${{TP:-4}}}}", ["--tp", "8", "--pp", "4"]),
        (f"A=(\n --tp 8 # comment\n  --bf16\n)\n{LAUNCH} ${{A[@]}}", ["--tp", "8", "--bf16"]),
        (f"A=(--tp 8)\nA+=(--bf16)\nB=(\"${{A[@]}}\" --lr 1)\n{LAUNCH} \"${{B[@]}}\"",
         ["--tp", "8", "--bf16", "--lr", "1"]),
        (f"A=(\"--fp8-format hybrid\")\n{LAUNCH} ${{A[@]}}", ["--fp8-format", "hybrid"]),
        (f"A=(\"two words\")\n{LAUNCH} --name \"${{A[@]}}\"", ["--name", "two words"]),
        (f"A=\" --tp 8 \\\n --bf16 \"\n{LAUNCH} $A", ["--tp", "8", "--bf16"]),
        (f"A=--tp\nA+=' 8'\n{LAUNCH} $A", ["--tp", "8"]),
        (f"{LAUNCH} --tp 8 \\\n   --bf16 # comment\n", ["--tp", "8", "--bf16"]),
        (f"{LAUNCH} --tp 8\n  --bf16\n  # comment\n  --lr 1", ["--tp", "8", "--bf16", "--lr", "1"]),
        (f"{LAUNCH} --bf16 2>&1 | tee log.txt\nwait", ["--bf16"]),
        (f"mkdir -p $1 --x && cd y && TP=2 {LAUNCH} --tp 8 > log 2> errors &", ["--tp", "8"]),
        (f"CMD=\"cd x; {LAUNCH} --tp 8\"\nsrun --container-image=x bash -x -c \"$CMD\"", ["--tp", "8"]),
        (f"CMD=\"{LAUNCH} --tp 8\"\neval $CMD", ["--tp", "8"]),
        (f"sbatch <<EOF\n#SBATCH --nodes=2\nsrun {LAUNCH} --tp 8\nEOF", ["--tp", "8"]),
        ("P=pretrain_gpt.py\npython -m torch.distributed.run --nnodes 2 $P --tp 8", ["--tp", "8"]),
        (f"{LAUNCH} --tp '$TP' --pp \"a\\$b\" --x a\\ b", ["--tp", "$TP", "--pp", "a$b", "--x", "a b"]),
        (f"{LAUNCH} --a ([0]*3+[1]*5) --b E|t*2|L", ["--a", "([0]*3+[1]*5)", "--b", "E|t*2|L"]),
        (f"+ TP=8\n+ {LAUNCH} --tp 8\n+ {LAUNCH} --tp 8", ["--tp", "8"]),
    ],
)  # fmt: skip
def test_words_are_those_that_a_shell_makes(script: str, words: list[str]) -> None:
    assert arguments(script) == words


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"N=$((2 * 4))\n{LAUNCH} --tp $N", ["--tp", "$((2", "*", "4))"]),
        (f"N=$(nproc)\n{LAUNCH} --tp $N --pp `x` --lr $1", ["--tp", "$(nproc)", "--pp", "`x`", "--lr", "$1"]),
        (f"source env.sh\n{LAUNCH} --tp $TP ${{ARGS[@]}}", ["--tp", "$TP", "${ARGS[@]}"]),
        (f"if [ $X ]; then TP=4; else TP=8; fi\n{LAUNCH} --tp $TP", ["--tp", "$TP"]),
        (f"TP=4\n[ $X ] && TP=8\n{LAUNCH} --tp $TP", ["--tp", "$TP"]),
        (f"case $X in\n 8B) TP=8 ;;\n *) TP=4\nesac\n{LAUNCH} --tp $TP", ["--tp", "$TP"]),
        (f"A=(--bf16)\nif x; then\n A+=(--tp 8)\nfi\n{LAUNCH} ${{A[@]}}", ["--bf16", "?--tp", "8"]),
        (f"A=(--bf16)\nif x; then\n A=(--tp 8)\nfi\n{LAUNCH} ${{A[@]}}", ["?--bf16", "?--tp", "8"]),
        (f"A=\nif x; then A='--tp 8'; fi\n{LAUNCH} $A --bf16", ["?--tp", "8", "--bf16"]),
        (f"if x; then\n {LAUNCH} --tp 8\nfi", ["?--tp", "8"]),
        (f"f() {{\n TP=8\n}}\n{LAUNCH} --tp $TP", ["--tp", "$TP"]),
        (f"A=\nif x; then A=\"\"; else A=; fi\n{LAUNCH} --bf16 $A", ["--bf16"]),
    ],
)  # fmt: skip
def test_what_only_a_shell_can_know_stays_as_it_is_written(script: str, words: list[str]) -> None:
    assert arguments(script) == words


def test_flags_without_a_program_are_a_command_without_metacharacters() -> None:
    text = "# comment\nexport X=1\n--tp 8 --layer-freq ([0]*3)\n --bf16\n"
    assert parse_flags(text) == {"--tp": ("8",), "--layer-freq": ("([0]*3)",), "--bf16": ()}
    assert parse_flags("VAR=1\necho --tp 8") == {}


@pytest.mark.parametrize("loop", ['A="$A$A"\n', "A=($A $A)\n"])
def test_an_expansion_without_end_is_refused(loop: str) -> None:
    with pytest.raises(PhazeError, match="flags: A: must have at most 1,000,000 characters"):
        command_of("A=--x\n" + loop * 40)


def test_several_commands_are_named() -> None:
    message = "has 2 commands with flags: prepare.py, train.py; keep the one that trains"
    with pytest.raises(PhazeError, match=message):
        command_of("python prepare.py --in x\nsrun --ntasks=1 hostname\npython train.py --out y")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("--bf16 $MORE", "--bf16: '[$]MORE' is not set by a plain assignment; phaze expands plain"),
        ("--lr 1e-4 $MORE", "--lr: '[$]MORE' is not set"),
        ("--log-throughput $MORE", "--log-throughput: '[$]MORE' is not set"),
        ("--save $1 --lr `x` --data-path $A $B --bf16", ""),
        ("--vocab-file $3/vocab.json", ""),
        ("A=()\nif x; then A+=(--lr 1); fi\ntorchrun a.py --bf16 ${A[@]}", ""),
        ("A=()\nif x; then A+=(--bf16); fi\ntorchrun a.py --lr 1 ${A[@]}", "--bf16: is set in a conditional"),
    ],
)
def test_words_that_could_be_any_flags_are_named(script: str, message: str) -> None:
    flags = parse_flags(script)
    if not message:
        refuse_unexpanded(flags, settings_of("megatron"), ("--vocab-file",))
        return
    with pytest.raises(PhazeError, match=message):
        refuse_unexpanded(flags, settings_of("megatron"))
