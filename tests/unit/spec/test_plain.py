"""YAML and JSON are read strictly and safely, and errors name the file."""

from collections.abc import Callable
from pathlib import Path

import pytest

from phaze.base.errors import PhazeError
from phaze.spec.plain import Plain, read_json, read_yaml


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "key 'a' is given twice"),
        ("a: [1, 2", "is not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "is not valid YAML"),
        ("? [1, 2]\n: 3\n", "a key must be a scalar"),
        ("a: {b: 2001-99-99}\n", r"a\.b: must be a valid timestamp; quote it .*; got '2001-99-99' .*line 1"),
        ("a: !!int abc\n", "a: must be a valid int; quote it if it is meant as text; got 'abc'"),
        ("a: !!int ''\n", "a: must be a valid int"),
        ("a: !!bool maybe\n", "a: must be a valid bool"),
        ("a: !!float x\n", "a: must be a valid float"),
        ("a: !!timestamp soon\n", "a: must be a valid timestamp"),
        ("a: " + "1" * 5000, r"a: must be a valid int; .*; got '1+\.\.\.1+\.\.\."),
        ("a: {b: 010}\n", r"a\.b: must be in decimal digits, got '010', which YAML reads as 8"),
        ("a: -1:30\n", r"a: must be in decimal digits, got '-1:30', which YAML reads as -90"),
        ("a: 1:30.5\n", r"a: must be in decimal digits, got '1:30.5', which YAML reads as 90.5"),
        ("a: 0x" + "f" * 5000, r"a: must be a number below 2\^1024, got '0xf+\.\.\."),
        ("b: &b {x: 1}\na:\n  <<: *b\n", "a: key '<<' merges another mapping, which is not supported"),
        ("a: {b: 1, b: 2}\n", "a: key 'b' is given twice"),
    ],
)
def test_yaml_that_is_malformed_or_unsafe_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(PhazeError, match=message) as error:
        read_yaml(path)
    assert str(path) in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "is not valid JSON: key 'a' is given twice"),
        ('{"a": {"b": 1, "b": 1}}', "is not valid JSON: key 'b' is given twice"),
        ('{"a": [1, 2', "is not valid JSON"),
        ("[" * 100_000, "is not valid JSON"),
    ],
    ids=["twice", "twice-inside", "cut-off", "endless-nesting"],
)
def test_malformed_json_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(PhazeError, match=message) as error:
        read_json(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("read", [read_yaml, read_json])
def test_a_missing_or_binary_file_is_named(tmp_path: Path, read: Callable[[Path], Plain]) -> None:
    with pytest.raises(PhazeError, match=r"none: cannot be read"):
        read(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PhazeError, match=r"binary: cannot be read"):
        read(tmp_path / "binary")


def test_values_of_a_text_that_is_read_twice_share_nothing(tmp_path: Path) -> None:
    path = tmp_path / "levels.yaml"
    path.write_text("levels: [1, 2]\n")
    first = read_yaml(path)
    assert isinstance(first, dict)
    assert isinstance(first["levels"], list)
    first["levels"].append(3)
    assert read_yaml(path) == {"levels": [1, 2]}
