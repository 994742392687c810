"""Settings that no recipe expresses: known, harmless with a subject, or refused by name."""

from collections import Counter

import pytest

from phaze.base.errors import PhazeError
from phaze.runtimes.megatron_flags import READ, megatron_software, read_megatron
from phaze.runtimes.settings import TABLES, OtherSettings, settings_of
from phaze.spec.system import Stack

FLAGS = """
--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --vocab-size 50257 --seq-length 1024 --bf16
--max-position-embeddings 1024 --micro-batch-size 2 --global-batch-size 64 --tensor-model-parallel-size 2
"""
RUNTIMES = sorted(path.stem for path in TABLES.glob("*.yaml"))


def names(other: OtherSettings) -> list[str]:
    """All names in a table, with those that are listed twice."""
    words = " ".join((other.refused, other.changes, *other.harmless.values())).split()
    return [*(word.partition("=")[0] for word in words), *other.renamed]


@pytest.mark.parametrize("runtime", RUNTIMES)
def test_every_setting_is_listed_once(runtime: str) -> None:
    counts = Counter(names(settings_of(runtime)))
    assert [name for name, count in counts.items() if count > 1] == []


def test_flags_that_are_read_are_not_called_harmless() -> None:
    assert READ & settings_of("megatron").subjects.keys() == set()


def test_a_misspelt_flag_is_named_before_a_missing_one() -> None:
    flags = FLAGS.replace("--num-attention-heads", "--nmu-attention-heads")
    with pytest.raises(PhazeError) as error:
        read_megatron(flags)
    assert error.value.wrong.startswith(
        "--nmu-attention-heads: is unknown; did you mean --num-attention-heads or "
    )
    assert "phaze/runtimes/tables/megatron.yaml" in error.value.fix


def test_of_many_unknown_flags_some_are_named_and_the_others_counted() -> None:
    with pytest.raises(PhazeError) as error:
        read_megatron(FLAGS + " ".join(f"--own-option-{i} 1" for i in range(7)))
    assert len(error.value.wrong.splitlines()) == 5
    assert error.value.wrong.endswith("; 2 more are unknown")


def test_harmless_flags_are_listed_by_subject() -> None:
    unread = read_megatron(f"{FLAGS} --lr 1e-4 --log-interval 5 --min-lr 1e-5 --seed 1")[1]
    assert unread == ("--lr", "--log-interval", "--min-lr", "--seed")
    assert settings_of("megatron").by_subject(unread) == (
        "learning rate and optimizer (--lr, --min-lr); logs and profiles (--log-interval); "
        "initialization (--seed)"
    )


def test_flags_are_named_unless_they_have_the_value_that_is_priced() -> None:
    for value, named in (("adam", ()), ("muon", ("--optimizer muon",))):
        text = f"{FLAGS} --optimizer {value} --moe-router-load-balancing-type aux_loss"
        assert megatron_software(text, read_megatron(text)[0], Stack()).unmodelled == named
    assert read_megatron(f"{FLAGS} --encoder-tensor-model-parallel-size 0")[1] == ()
    with pytest.raises(
        PhazeError, match="--encoder-tensor-model-parallel-size: is modelled only as 0, got '2'"
    ):
        read_megatron(f"{FLAGS} --encoder-tensor-model-parallel-size 2")


def test_earlier_names_of_flags_are_read() -> None:
    earlier = FLAGS.replace("--tensor-model-parallel-size", "--model-parallel-size")
    assert read_megatron(earlier) == read_megatron(FLAGS)
    assert read_megatron(f"{FLAGS} --quick-geglu")[0].model.gated
    with pytest.raises(
        PhazeError, match=r"--micro-batch-size and --batch-size: are one setting, .* got '2' and '4'"
    ):
        read_megatron(f"{FLAGS} --batch-size 4")
