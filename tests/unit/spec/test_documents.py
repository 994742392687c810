"""Files passed between jobs reveal changes after writing."""

from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.documents import read_as, text_of, write_checked
from phaze.spec.stages import StoredStage, StoredStages
from phaze.spec.training_plan import TrainingPlan

STAGE = StoredStage(forward_s=1.0, backward_s=2.5, parameter_bytes=8)
SHAPE = {"model": "toy", "replicas": 2, "microbatches": 4, "recompute": True}
STAGES = StoredStages(format="phaze-stages", version=1, stages=(STAGE,), edges=(), **SHAPE)


def test_no_bit_of_a_checked_file_can_turn_unseen(tmp_path: Path) -> None:
    path = tmp_path / "stages.json"
    write_checked(text_of(STAGES), path)
    assert read_as(StoredStages, path) == STAGES
    content = path.read_bytes()
    for place in range(len(content)):  # all bits of the checksum and its key, and one of every byte before
        for bit in range(8) if place > content.index(b"sha256") - 5 else (place % 8,):
            path.write_bytes(content[:place] + bytes([content[place] ^ (1 << bit)]) + content[place + 1 :])
            with pytest.raises(PhazeError, match=r"stages\.json: "):
                read_as(StoredStages, path)


def test_a_checked_file_may_be_cut_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "stages.json"
    write_checked(text_of(STAGES), path)
    text = path.read_text()
    for length in range(len(text) - 1):
        path.write_text(text[:length])
        with pytest.raises(PhazeError, match=r"stages\.json: "):
            read_as(StoredStages, path)


def test_who_edits_a_checked_file_is_told_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "stages.json"
    write_checked(text_of(STAGES), path)
    edited = path.read_text().replace('"replicas": 2', '"replicas": 3')
    path.write_text(edited)
    with pytest.raises(PhazeError, match="content does not match its sha256; delete it and run again; if"):
        read_as(StoredStages, path)
    path.write_text(edited.partition(',\n "sha256"')[0] + "\n}\n")
    assert read_as(StoredStages, path).replicas == 3


def test_a_document_of_another_kind_is_one_message(tmp_path: Path) -> None:
    file = tmp_path / "other.json"
    for text, shown in (('{"a": 1}', "None"), ('{"format": "phaze-stages"}', "'phaze-stages'")):
        file.write_text(text)
        with pytest.raises(PhazeError) as error:
            read_as(TrainingPlan, file)
        assert error.value.wrong == f"{file}: format: must be phaze-plan, got {shown}"
