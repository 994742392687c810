"""Models of any kind, of specs by name or path and of published configurations."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER, model_path, read_mapping
from phaze.spec.huggingface import translate
from phaze.spec.model import Model
from phaze.spec.plain import Plain, read_json
from phaze.spec.traced import Traced
from phaze.spec.traced_transformer import OPTION, transformer_of
from phaze.spec.vision import ResNet, SemanticFpn, Swin

AnyModel: TypeAlias = Model | ResNet | SemanticFpn | Swin | Traced
"""What a spec can be of; all have a name, parameters, FLOPs, and what a study checks them for."""
KINDS: dict[str, type[Model | ResNet | SemanticFpn | Swin | Traced]] = {
    "transformer": Model,
    "resnet": ResNet,
    "semantic-fpn": SemanticFpn,
    "swin": Swin,
    "traced": Traced,
}
"""Kinds of models; a spec that says none is of a transformer."""


def load_model_named(model: str, folder: Path = FOLDER) -> AnyModel:
    """Model by the name of its spec in config/models, or by the path of a spec."""
    return load_model(model_path(model, folder))


def load_transformer(
    name: str, where: str, folder: Path = FOLDER, given: Mapping[str, object] | None = None
) -> Model:
    """Transformer by the name of its spec in config/models, or by the path of a spec, a `config.json` or a
    traced model, of which `given` are fields that the trace cannot tell.

    Raises PhazeError for a name that there is not, with the nearest, and for another kind of model; `where`
    says who asked.
    """
    model = load_model_named(name, folder)
    if isinstance(model, Traced):
        return transformer_of(model, name, given)
    if given:
        raise PhazeError(f"{where}: {OPTION}: is for traced models, {name} is none: write a spec of it")
    if not isinstance(model, Model):
        raise PhazeError(f"{where}: {name} must be a transformer, got {type(model).__name__}")
    return model


def parse_model(fields: dict[str, object], source: str) -> AnyModel:
    """Model of the fields of a spec, whatever its kind; raises PhazeError.

    A spec runs no code: one that names a callable of PyTorch is refused.
    """
    if "torch" in fields:
        raise PhazeError(
            f"{source}: torch: names code, which a spec must not run; "
            f"`python -m phaze trace {source} --run-code` runs it and writes the graph of its operators"
        )
    if fields.get("lora") is not None:
        raise PhazeError(f"{source}: lora: is no property of a model; give --lora, or a column of runs")
    kind = fields.get("kind", "transformer")
    if not isinstance(kind, str) or kind not in KINDS:
        raise PhazeError(f"{source}: kind: must be one of {', '.join(KINDS)}, got {kind!r}")
    own = {key: value for key, value in fields.items() if key != "kind" or kind != "transformer"}
    return KINDS[kind].parse(own, source)


def load_model(path: str | Path, name: str | None = None) -> AnyModel:
    """Model of a YAML spec, or of a Hugging Face `config.json` as published.

    It is named by `name`, else by the spec, else by its file (a file called config.json by its folder).
    Raises PhazeError.
    """
    path = Path(path)
    fields = _published(read_json(path), str(path)) if path.suffix == ".json" else read_mapping(path)
    given = {"name": name} if name else {}
    return parse_model({"name": file_name(path), **fields, **given}, str(path))


def _published(config: Plain, source: str) -> Mapping[str, object]:
    """Fields of a spec for what a JSON file holds: a traced model, or a Hugging Face configuration."""
    if isinstance(config, dict) and config.get("kind") == "traced":
        return config
    return translate(config, source)


def file_name(path: Path) -> str:
    """Name of a model by its file, by its folder where that is called config.json."""
    stem = Path(os.path.realpath(path)).parent.name if path.name == "config.json" else path.stem
    return re.sub(r"[^a-z0-9.-]+", "-", stem.lower()).strip("-.") or "model"
