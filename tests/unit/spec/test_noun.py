"""Invalid input is refused with one message that gives file, key and value."""

import math
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

import phaze.spec
from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER, read_mapping
from phaze.spec.model import Model
from phaze.spec.noun import Noun
from phaze.spec.system import Scenario
from phaze.spec.systems import load_device, load_stack

ARGUMENTS = ["TorchCall.arguments", "TorchModule.arguments"]
"""Fields whose values are passed to a PyTorch callable as they are."""
LOOSE = (
    "AttentionPass.tail Maps.seed NearRun.error PlanCertificate.gap PlanPoint.blocks PlanPoint.memory_gib "
    "PlanPoint.microbatches RandomBlocks.seed TokenFlops.needed TokenFlops.paper UndecidedPlan.gain "
    "UniformDist.seed"
)
"""Numbers that are computed, seeds of draws, and a share from 0 to 1."""


def test_a_noun_is_read_from_plain_data() -> None:
    assert Scenario.parse({"devices": 4}, "system.yaml").devices == 4


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"devices": 0}, r"system\.yaml: devices: should be greater than 0, got 0"),
        ({"devices": "many"}, r"^system\.yaml: devices: must be a whole number, got 'many'$"),
        ({"device": 4}, r"system\.yaml: device: is not a known key, got 4"),
        ({"clock_hz": -1.0}, r"system\.yaml: clock_hz: should be greater than 0, got -1.0"),
        ([1], r"system\.yaml: must be a mapping, got a list, \[1\]"),
    ],
)
def test_bad_input_names_file_key_and_value(data: object, message: str) -> None:
    with pytest.raises(PhazeError, match=message):
        Scenario.parse(data, "system.yaml")


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


@pytest.fixture(scope="module")
def nouns() -> list[type[Noun]]:
    """Every noun of the package."""
    for module in pkgutil.iter_modules(phaze.spec.__path__, "phaze.spec."):
        import_module(module.name)
    return sorted({n for n in _nouns() if n.__module__.startswith("phaze.spec.")}, key=lambda n: n.__name__)


def test_no_noun_takes_text_with_control_characters(nouns: list[type[Noun]]) -> None:
    assert len(nouns) > 100
    free = [
        f"{noun.__name__}.{name}"
        for noun in nouns
        for name, field in noun.model_fields.items()
        if _takes_any_text(field.annotation, field.metadata)
    ]
    assert free == ARGUMENTS


def _is_number(annotation: object) -> bool:
    """True for int and float, also with limits or None."""
    if get_origin(annotation) is Annotated:
        return _is_number(get_args(annotation)[0])
    parts = [part for part in get_args(annotation) if part is not type(None)]
    return annotation in (int, float) or (len(parts) == 1 and _is_number(parts[0]))


def _takes(field: FieldInfo, value: object) -> bool:
    try:
        TypeAdapter(Annotated[field.annotation, "number", *field.metadata]).validate_python(value)
    except ValidationError:
        return False
    return True


def test_no_noun_takes_what_only_looks_like_a_number(nouns: list[type[Noun]]) -> None:
    """Text in quotes, YAML's true, fractions of whole numbers, .inf and .nan."""
    fields = {f"{noun.__name__}.{name}": field for noun in nouns for name, field in noun.model_fields.items()}
    numbers = {name: field for name, field in fields.items() if _is_number(field.annotation)}
    assert len(numbers) > 400
    wrong: tuple[object, ...] = ("8", "x", True, math.nan, math.inf)
    loose = [name for name, field in numbers.items() if any(_takes(field, value) for value in wrong)]
    whole = {name for name, field in numbers.items() if field.annotation is int}
    assert sorted(loose) == LOOSE.split()
    assert not any(_takes(numbers[name], 2.5) for name in whole)


@pytest.mark.parametrize(
    ("load", "key", "given", "message"),
    [
        (load_device, "clock_hz", [1.0e9], r"clock_hz: must be a number, got a list, \[1000000000\.0\]$"),
        (
            load_device,
            "num_tc",
            {"cores": 4},
            r"num_tc: must be a whole number, got a mapping, \{'cores': 4\}$",
        ),
        (load_device, "known_as", "H100", r"known_as: must be a list, got 'H100'$"),
        (load_device, "products", 3, "products: must be a mapping, got 3$"),
        (load_stack, "overlap", 3, "overlap: must be a list, got 3$"),
    ],
)
def test_a_value_of_another_kind_is_named_with_the_kind_that_stands_there(
    tmp_path: Path, load: Callable[[str], object], key: str, given: object, message: str
) -> None:
    folder, name = ("devices", "h100-80gb") if load is load_device else ("stacks", "megatron-bridge")
    fields = read_mapping(FOLDER / folder / f"{name}.yaml") | {key: given}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(fields))
    with pytest.raises(PhazeError, match=message):
        load(str(tmp_path / "mine.yaml"))
