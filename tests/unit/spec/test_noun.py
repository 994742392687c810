"""What a user writes is read safely, and refused with one message that names file, key and value."""

from pathlib import Path

import pytest

from phaze.errors import PhazeError
from phaze.spec.noun import read_yaml
from phaze.spec.system import System


def test_a_noun_is_read_from_plain_data() -> None:
    assert System.parse({"devices": 4}, "system.yaml").devices == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"devices": 0}, r"system\.yaml: devices: should be greater than 0, got 0"),
        ({"devices": "many"}, r"system\.yaml: devices: should be a valid integer.*got 'many'"),
        ({"device": 4}, r"system\.yaml: device: is not a known key, got 4"),
        ({"clock_hz": -1.0}, r"system\.yaml: clock_hz: should be greater than 0, got -1.0"),
        ([1], r"system\.yaml: .* got \[1\]"),
    ],
)
def test_bad_input_names_file_key_and_value(data: object, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        System.parse(data, "system.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "key 'a' is given twice"),
        ("a: [1, 2", "is not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("? [1, 2]\n: 3\n", "a key must be plain"),
    ],
)
def test_yaml_that_is_malformed_or_unsafe_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(PhazeError, match=message) as error:
        read_yaml(path)
    assert str(path) in str(error.value)


def test_a_missing_or_binary_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PhazeError, match=r"none\.yaml: cannot be read"):
        read_yaml(tmp_path / "none.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PhazeError, match=r"b\.yaml: cannot be read"):
        read_yaml(tmp_path / "b.yaml")
