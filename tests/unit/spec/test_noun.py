"""Invalid input is refused with one message that gives file, key and value."""

import pkgutil
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import pytest

import phaze.spec
from phaze.base.errors import PhazeError
from phaze.spec.model import Model
from phaze.spec.noun import Noun
from phaze.spec.system import System
from phaze.spec.systems import load_device

ARGUMENTS = ["TorchCall.arguments", "TorchModule.arguments"]
"""Fields whose values are passed to a PyTorch callable as they are."""


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


def test_a_misspelt_key_is_named_and_not_the_one_that_it_stands_for(
    project_root: Path, tmp_path: Path
) -> None:
    """In a noun, and in a device file, whose missing figures would be asked for first."""
    with pytest.raises(PhazeError, match="hiddn: is not a known key, got 8") as error:
        Model.parse({"name": "x", "layers": 2, "hiddn": 8, "heads": 2, "vocabulary": 9}, "x.yaml")
    assert "hidden: " not in str(error.value).replace("hiddn: ", "")
    for key in ("hbm_bandwidth_bytes_per_s", "hbm_gib"):
        device = (project_root / "config/devices/h100-80gb.yaml").read_text().replace(f"{key}:", f"{key}x:")
        (path := tmp_path / "device.yaml").write_text(device)
        with pytest.raises(PhazeError, match=f"{key}x: is not a known key"):
            load_device(str(path))


def _nouns(noun: type[Noun] = Noun) -> Iterator[type[Noun]]:
    for kind in noun.__subclasses__():
        yield kind
        yield from _nouns(kind)


def _takes_any_text(annotation: object, validators: Sequence[object] = ()) -> bool:
    """True if keys or values of a type may have control characters."""
    if annotation is str:
        return not validators
    if get_origin(annotation) is Annotated:
        kind, *validators = get_args(annotation)
        return _takes_any_text(kind, validators)
    parts = () if get_origin(annotation) is Literal else get_args(annotation)
    return any(_takes_any_text(part) for part in parts)


def test_no_noun_takes_text_with_control_characters() -> None:
    for module in pkgutil.iter_modules(phaze.spec.__path__, "phaze.spec."):
        import_module(module.name)
    nouns = [noun for noun in _nouns() if noun.__module__.startswith("phaze.spec.")]
    assert len(nouns) > 100
    free = [
        f"{noun.__name__}.{name}"
        for noun in nouns
        for name, field in noun.model_fields.items()
        if _takes_any_text(field.annotation, field.metadata)
    ]
    assert free == ARGUMENTS
