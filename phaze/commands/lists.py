"""Lists of the models, systems, devices, stacks and other files that phaze knows, with their sources."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated

import typer

from phaze.base.errors import PhazeError
from phaze.base.printed import PIPED
from phaze.base.units import UM2_PER_MM2, digits
from phaze.commands.options import JsonOption
from phaze.commands.tables import Titled, counts, print_rows

if TYPE_CHECKING:
    from pathlib import Path

    from phaze.commands.tables import Row

NameArgument = Annotated[str, typer.Argument(metavar="TEXT", help="List only rows that contain this text.")]
CLAUSE = re.compile(r"; |: |\.(?:\s+(?=[A-Z])|$)")
"""Pattern that ends the first clause of a file's leading comment."""
SOURCE = Titled("source", "source", wraps=True)


def _listed(rows: Iterator[Row], text: str, columns: list[Titled], *, as_json: bool) -> None:
    """Print the rows that contain a text; PhazeError if none does."""
    matches = [row for row in rows if text.lower() in " ".join(map(str, row.values())).lower()]
    if not matches:
        raise PhazeError(f"no row contains {text!r}")
    if as_json:
        typer.echo(json.dumps(matches, indent=1, ensure_ascii=False))
    else:
        print_rows(matches, columns, PIPED)


def _files(folder: str) -> Iterator[Path]:
    from phaze.spec.files import FOLDER

    yield from sorted((FOLDER / folder).glob("*.yaml"))


def _source(path: Path) -> str:
    """First clause of a file's leading comment, which names its content and where it was published."""
    with path.open(encoding="utf-8") as lines:
        words = [line.strip("# \n") for line in takewhile(lambda line: line.startswith("#"), lines)]
    clause = CLAUSE.split(" ".join(words))[0]
    # The clause may end inside parentheses.
    return clause + ")" * (clause.count("(") - clause.count(")"))


def models(text: NameArgument = "", as_json: JsonOption = False) -> None:
    """List the models with their sizes and sources."""
    columns = [
        Titled("model", "model"), Titled("parameters", "params", _billions, True),
        Titled("active_parameters", "active", _billions, True), counts("layers", "layers"),
        counts("longest_sequence", "context"), SOURCE,
    ]  # fmt: skip
    _listed(_models(), text, columns, as_json=as_json)


def _models() -> Iterator[Row]:
    from phaze.spec.model import Model
    from phaze.spec.models import load_model

    for path in _files("models"):
        model = load_model(path)
        transformer = model if isinstance(model, Model) else None
        yield {
            "model": path.stem,
            "kind": getattr(model, "kind", "transformer"),
            "parameters": transformer and transformer.parameters,
            "active_parameters": transformer and transformer.active_parameters,
            "layers": transformer and transformer.layers,
            "longest_sequence": transformer and (transformer.position_count or None),
            "source": _source(path),
        }


def _billions(value: object) -> str:
    return f"{digits(float(str(value)) / 1e9)} B"


def systems(text: NameArgument = "", as_json: JsonOption = False) -> None:
    """List the systems with their devices, networks and sources."""
    columns = [
        Titled("system", "system"), counts("devices", "devices"), Titled("device", "device"),
        Titled("levels", "network", _levels, wraps=True), SOURCE,
    ]  # fmt: skip
    _listed(_systems(), text, columns, as_json=as_json)


def _systems() -> Iterator[Row]:
    from phaze.spec.files import read_mapping
    from phaze.spec.systems import load_cluster, load_tiled

    for path in _files("systems"):
        # Only systems of tiled chips define DRAM; they have no network levels.
        if "dram" in read_mapping(path):
            tiled, chip = load_tiled(str(path))
            figures: Row = {"devices": tiled.chips, "device": chip.name, "levels": None, "stack": None}
        else:
            cluster, _ = load_cluster(str(path))
            levels = [
                {"devices": level.devices, "bandwidth_bytes_per_s": level.bandwidth_bytes_per_s}
                for level in cluster.levels
            ]
            figures = {
                "devices": cluster.devices,
                "device": cluster.device,
                "levels": levels,
                "stack": cluster.stack,
            }
        yield {"system": path.stem, **figures, "source": _source(path)}


def _levels(value: object) -> str:
    """Format network levels, innermost first, such as `8 at 450, 1,024 at 50.0 GB/s`."""
    assert isinstance(value, list)
    levels = (f"{level['devices']:,} at {digits(level['bandwidth_bytes_per_s'] / 1e9)}" for level in value)
    return f"{', '.join(levels)} GB/s"


def devices(text: NameArgument = "", as_json: JsonOption = False) -> None:
    """List the devices and the architectures with their sizes and sources.

    An architecture has no clock of its own: it is the system's.
    """
    columns = [
        Titled("device", "device"), Titled("arrays", "arrays"),
        Titled("peak_flops_per_s", "TFLOP/s", _trillions, True), counts("hbm_gib", "GiB"),
        Titled("hbm_bandwidth_bytes_per_s", "TB/s", _trillions, True), SOURCE,
    ]  # fmt: skip
    _listed(_devices(), text, columns, as_json=as_json)


def _devices() -> Iterator[Row]:
    from phaze.spec.config import load_architecture
    from phaze.spec.files import read_mapping
    from phaze.spec.systems import load_device
    from phaze.spec.tiled import TiledDevice

    for path in (*_files("devices"), *_files("architectures")):
        figures: dict[str, object] = dict.fromkeys(
            ("peak_flops_per_s", "hbm_gib", "hbm_bandwidth_bytes_per_s")
        )
        fields = read_mapping(path)
        if "tile" in fields:
            tiled = TiledDevice.parse({"name": path.stem, **fields}, str(path))
            kind, arrays = "tiles", f"{tiled.tiles} x {tiled.tile.pe_x}x{tiled.tile.pe_y}"
            figures["peak_flops_per_s"] = tiled.flops
        else:
            kind = "device" if path.parent.name == "devices" else "architecture"
            chip = load_device(str(path)) if kind == "device" else load_architecture(str(path))
            arrays = f"{chip.num_tc} x {chip.pe_x}x{chip.pe_y}"
            figures |= {name: getattr(chip, name, None) for name in figures}
        yield {"device": path.stem, "kind": kind, "arrays": arrays, **figures, "source": _source(path)}


def architectures(text: NameArgument = "", as_json: JsonOption = False) -> None:
    """List the architectures with their areas, cores, memories and sources.

    The area is as published, or computed for the technology of a study.
    """
    columns = [
        Titled("architecture", "architecture"), counts("area_mm2", "mm²"),
        Titled("tensor_cores", "tensor cores"), Titled("vector_cores", "vector cores"),
        counts("hbm_gib", "HBM GiB"), SOURCE,
    ]  # fmt: skip
    _listed(_architectures(), text, columns, as_json=as_json)


def _architectures() -> Iterator[Row]:
    from phaze.cost.space import area_um2
    from phaze.spec.architecture import TECHNOLOGY, load_technology
    from phaze.spec.config import load_architecture

    figures = load_technology(TECHNOLOGY).area_um2
    for path in _files("architectures"):
        chip = load_architecture(str(path))
        yield {
            "architecture": path.stem,
            "area_mm2": area_um2(chip, figures) / UM2_PER_MM2,
            "tensor_cores": f"{chip.num_tc:,} of {chip.pe_x}x{chip.pe_y}",
            "vector_cores": f"{chip.num_vc:,} of {chip.lanes}",
            "hbm_gib": chip.hbm_gib,
            "source": _source(path),
        }


def _trillions(value: object) -> str:
    return digits(float(str(value)) / 1e12)


def stacks(text: NameArgument = "", as_json: JsonOption = False) -> None:
    """List the software stacks with their overlap, recipes and sources."""
    columns = [
        Titled("stack", "stack"),
        Titled("overlap", "overlaps", _joined, wraps=True),
        counts("recipes", "recipes"),
        SOURCE,
    ]
    _listed(_stacks(), text, columns, as_json=as_json)


def _stacks() -> Iterator[Row]:
    from phaze.spec.recipes import published_recipes
    from phaze.spec.systems import load_stack

    sources = [recipe.source for recipe in published_recipes()]
    for path in _files("stacks"):
        stack = load_stack(str(path))
        yield {
            "stack": path.stem,
            "overlap": list(stack.overlap),
            "recipes": sources.count(path.stem),
            "source": _source(path),
        }


def _joined(value: object) -> str:
    assert isinstance(value, list)
    return ", ".join(value) or "nothing"


def recipes(text: NameArgument = "", as_json: JsonOption = False) -> None:
    """List the published recipes with their layouts and sources."""
    columns = [
        Titled("model", "model"), Titled("gpus", "gpus"), Titled("precision", "precision"),
        counts("sequence", "sequence"), counts("global_batch", "batch"),
        Titled("layout", "layout", wraps=True), Titled("published", "source", wraps=True),
    ]  # fmt: skip
    _listed(_recipes(), text, columns, as_json=as_json)


def _recipes() -> Iterator[Row]:
    from phaze.spec.recipes import published_recipes

    for recipe in published_recipes():
        yield {
            "model": recipe.model, "gpus": f"{recipe.gpus}x{recipe.system}", "precision": recipe.precision,
            "sequence": recipe.sequence, "global_batch": recipe.global_batch, "layout": recipe.shape,
            "published": f"{recipe.repository} {recipe.release}", "source": recipe.stated_in,
        }  # fmt: skip
