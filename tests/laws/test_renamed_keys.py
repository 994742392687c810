"""A key that is renamed in a valid file of any noun is named, or the file is refused, or means another thing.

`PHAZE_DRAWS=2000 pytest -s tests/laws/test_renamed_keys.py` draws more, and prints how many by kind of file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from random import Random

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from snakemake.utils import update_config

from phaze.base.errors import PhazeError
from phaze.spec.architecture import Technology, load_technology
from phaze.spec.config import load_architecture
from phaze.spec.files import FOLDER, read_mapping
from phaze.spec.huggingface import translate
from phaze.spec.huggingface.keys import BASE, COSTLESS
from phaze.spec.models import load_model
from phaze.spec.speeds.collectives import NcclSpeeds
from phaze.spec.study import Study
from phaze.spec.systems import load_cluster, load_device, load_stack, load_tiled
from phaze.spec.tiled import TiledDevice
from tests.laws.test_laws import LAWS
from tests.laws.test_renamed_columns import renamed


def study(path: Path) -> Study:
    """Study of a file and the default settings, joined as Snakemake joins them."""
    config = read_mapping(FOLDER / "config.yaml")
    update_config(config, read_mapping(path))
    return Study.parse(config, str(path))


def tiles(path: Path) -> TiledDevice:
    """Chip of tiles."""
    return TiledDevice.parse({"name": path.stem, **read_mapping(path)}, str(path))


def technology(path: Path) -> Technology:
    """Technology, which is found by its name only."""
    (folder := path.parent / "technologies").mkdir(exist_ok=True)
    (folder / path.name).write_text(path.read_text())
    return load_technology(path.stem, path.parent)


READERS: dict[str, tuple[Callable[[Path], object], ...]] = {
    "architectures": (lambda path: load_architecture(str(path)),),
    "devices": (lambda path: load_device(str(path)), tiles),
    "models": (load_model,),
    "networks": (NcclSpeeds.from_file,),
    "stacks": (lambda path: load_stack(str(path)),),
    "studies": (study,),
    "systems": (lambda path: load_cluster(str(path)), lambda path: load_tiled(str(path))),
    "technologies": (technology,),
}
"""Functions of which the first that takes a file reads it, for each kind of file of config/."""
HARMLESS = BASE | COSTLESS
WRITTEN = json.loads((FOLDER.parent / "tests/data/transformers-written.json").read_text())


@cache
def reader_of(kind: str, path: Path) -> Callable[[Path], object]:
    """Function that reads a file."""
    for reader in READERS[kind][:-1]:
        with suppress(PhazeError):
            reader(path)
            return reader
    return READERS[kind][-1]


def renamed_in(document: object, random: Random) -> tuple[str, str, object]:
    """Key, its new name, and a copy of a document in which one key of any depth is renamed."""
    changed = deepcopy(document)
    places = list(_mappings(changed))
    mapping = random.choice(places)
    key = random.choice(list(mapping))
    other = renamed(str(key), random)
    items = [(other if name == key else name, value) for name, value in mapping.items()]
    mapping.clear()
    mapping.update(items)
    return str(key), other, changed


def _mappings(document: object) -> Iterator[dict[object, object]]:
    """Yield every mapping of a document that has keys."""
    if isinstance(document, dict):
        if document:
            yield document
        for value in document.values():
            yield from _mappings(value)
    elif isinstance(document, list):
        for value in document:
            yield from _mappings(value)


@LAWS
@given(seed=st.integers(0, 2**32))
def test_a_renamed_key_is_not_passed_over(
    tally: Counter[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    random = Random(seed)
    kind = random.choice([*READERS, "config.json"])
    if kind == "config.json":
        name = random.choice(list(WRITTEN))
        document, read = WRITTEN[name]["written"], lambda fields: translate(fields, "config.json")
    else:
        path = random.choice(sorted((FOLDER / kind).glob("*.yaml")))
        name, document = path.stem, yaml.safe_load(path.read_text())
        file = tmp_path_factory.getbasetemp() / f"{name}.yaml"

        reader = reader_of(kind, path)

        def read(fields: object) -> object:
            file.write_text(yaml.safe_dump(fields, sort_keys=False))
            return reader(file)

    key, other, changed = renamed_in(document, random)
    if kind == "config.json" and (document.get(key) is None or (key in HARMLESS and not document[key])):
        tally[kind, "says nothing"] += 1  # null, or off and without effect
        return
    try:
        answer = read(changed)
    except PhazeError as error:
        tally[kind, "named" if other in str(error) else "refused"] += 1
        return
    tally[kind, "changes"] += 1
    assert answer != read(document), f"{kind}/{name}: {key} as {other}"
