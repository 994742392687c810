"""Every mistake is told in two lines: what is wrong, and how to mend it."""

from pathlib import Path

import pytest

from phaze.__main__ import main
from phaze.base.errors import PhazeError

MINE = "layers: 4\nhiddens: 8\nhidden: 8\nheads: 1\nfeed_forward: 8\nvocabulary: 8\nposition_count: 8\n"
PLAN = ("plan", "gpt2", "--gpus", "8xh100")


@pytest.mark.parametrize(
    ("arguments", "status", "wrong", "fix"),
    [
        (("plan", "gpt2-xxl"), 1, "there is no model 'gpt2-xxl'", "did you mean gpt2-xl or gpt2?"),
        (("plan", "gpt2"), 1, "plan: the cluster is missing", "pass --gpus, such as --gpus 256xH100"),
        (("plan", "gpt2", "--gpu", "8xh100"), 2, "No such option: --gpu", "did you mean --gpus?"),
        (("plam",), 2, "No such command 'plam'.", "did you mean plan or place?"),
        (
            (*PLAN, "--rank", "x"),
            2,
            "'--rank': 'x' is not one of 'prudent', 'expected'",
            "see `phaze plan -h`",
        ),
        ((*PLAN, "--fix", "recomputed=1"), 1, "got 'recomputed=1'", "did you mean recompute?"),
        (
            ("emit", "p.json", "--for", "maxtext"),
            2,
            "'maxtext' is not one of 'bridge', 'megatron', 'torchtitan', 'deepspeed'",
            "see `phaze emit -h`",
        ),
        (
            ("export", "p.parquet", "--format", "xml"),
            2,
            "is not one of 'csv', 'json'",
            "see `phaze export -h`",
        ),
        ((*PLAN, "--tokens", "4X"), 2, "'--tokens': must be a number", "see `phaze plan -h`"),
        (("plan",), 2, "Missing argument 'model'", "see `phaze plan -h`"),
        (("models", "gpt9"), 1, "no row contains 'gpt9'", "see `phaze models -h`"),
        (("--confi", "x"), 2, "No such option: --confi", "did you mean --config?"),
        (("model", "mine.yaml"), 1, "mine.yaml: hiddens: is not a known key, got 8", "did you mean hidden?"),
        (("plan", "mine.yaml", "--gpus", "8xh100"), 1, "hiddens: is not a known key", "did you mean hidden?"),
    ],
)
def test_a_mistake_is_two_lines(
    arguments: tuple[str, ...], status: int, wrong: str, fix: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (tmp_path / "mine.yaml").write_text(MINE)
    monkeypatch.setattr(
        "sys.argv", ["phaze", *(str(tmp_path / one) if one == "mine.yaml" else one for one in arguments)]
    )
    assert main() == status
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: ")
    assert wrong in first
    assert second.startswith(f"help: {fix}")


def test_an_error_keeps_its_help_in_a_place_and_in_one_line() -> None:
    error = PhazeError("no x", "give one").under("file")
    assert (error.wrong, error.fix, str(error)) == ("file: no x", "give one", "file: no x; give one")
    assert str(PhazeError("no x")) == "no x"
