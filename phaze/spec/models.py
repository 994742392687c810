"""Load models of every kind: from specs by name or path, or from published configurations."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER, model_path, read_mapping
from phaze.spec.model import Model
from phaze.spec.plain import Plain, read_json
from phaze.spec.traced import OPTION, Traced, transformer_of
from phaze.spec.vision import ResNet, SemanticFpn, Swin

AnyModel: TypeAlias = Model | ResNet | SemanticFpn | Swin | Traced
"""Model of any kind; all have a name, parameters, FLOPs and the checks that a study needs."""
KINDS: dict[str, type[Model | ResNet | SemanticFpn | Swin | Traced]] = {
    "transformer": Model,
    "resnet": ResNet,
    "semantic-fpn": SemanticFpn,
    "swin": Swin,
    "traced": Traced,
}
"""Model classes by `kind`; a spec without `kind` is a transformer."""


def load_model_named(model: str, folder: Path = FOLDER) -> AnyModel:
    """Load a model by its name in config/models, or by the path of a spec."""
    return load_model(model_path(model, folder))


def load_transformer(
    name: str, where: str, folder: Path = FOLDER, user_fields: Mapping[str, object] | None = None
) -> Model:
    """Load a transformer by its name in config/models, or by path.

    A path may lead to a spec, a `config.json` or a traced model; `user_fields` are fields that a trace lacks.
    Raises PhazeError for an unknown name, with the nearest ones, and for other kinds of model; `where` names
    the source.
    """
    model = load_model_named(name, folder)
    if isinstance(model, Traced):
        return transformer_of(model, name, user_fields)
    if user_fields:
        raise PhazeError(
            f"{where}: {OPTION}: applies to traced models only; {name} is not one: change its spec"
        )
    if not isinstance(model, Model):
        raise PhazeError(f"{where}: {name} must be a transformer, got {type(model).__name__}")
    return model


def parse_model(fields: dict[str, object], source: str) -> AnyModel:
    """Parse the fields of a spec into a model of any kind; raises PhazeError.

    Specs run no code: a spec that names a PyTorch callable is an error.
    """
    if "torch" in fields:
        raise PhazeError(
            f"{source}: torch: names code, and a spec must not run code",
            f"`python -m phaze trace {source} --run-code` runs it and writes the graph of its operators",
        )
    if fields.get("lora") is not None:
        raise PhazeError(
            f"{source}: lora: is a training option, not a model field",
            "pass --lora, or use the column lora of runs",
        )
    kind = fields.get("kind", "transformer")
    if not isinstance(kind, str) or kind not in KINDS:
        raise PhazeError(f"{source}: kind: must be one of {', '.join(KINDS)}, got {kind!r}")
    spec_fields = {key: value for key, value in fields.items() if key != "kind" or kind != "transformer"}
    return KINDS[kind].parse(spec_fields, source)


def load_model(path: str | Path, name: str | None = None) -> AnyModel:
    """Load a model from a YAML spec or a published Hugging Face `config.json`.

    Its name is `name`, else the one in the spec, else the file name (for config.json see `published_name`).
    Raises PhazeError.
    """
    path, default_name = Path(path), file_name(Path(path))
    if path.suffix == ".json":
        config = read_json(path)
        fields = _published(config, str(path))
        if path.name == "config.json" and isinstance(config, dict):
            default_name = published_name(config, default_name)
    else:
        fields = read_mapping(path)
    user_name = {"name": name} if name else {}
    return parse_model({"name": default_name, **fields, **user_name}, str(path))


def _published(config: Plain, source: str) -> Mapping[str, object]:
    """Fields of a spec from JSON: a traced model, or a Hugging Face configuration."""
    if isinstance(config, dict) and config.get("kind") == "traced":
        return config
    from phaze.spec.huggingface import translate  # all families: no job of a study needs them

    return translate(config, source)


def file_name(path: Path) -> str:
    """Model name from a file's name, or from its folder's name if the file is called config.json."""
    return (
        _spelt(Path(os.path.realpath(path)).parent.name if path.name == "config.json" else path.stem)
        or "model"
    )


def published_name(config: Mapping[str, Plain], folder: str) -> str:
    """Name of a published model: that of its repository, else its folder's if this names the family.

    Else the name is the family's: a folder of any other name says nothing of the model.
    """
    repository = _spelt(str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2])
    family = _spelt(str(config.get("model_type") or ""))
    letters = re.match("[a-z]*", family)
    return repository or (folder if letters and letters[0] in folder else family)


def _spelt(name: str) -> str:
    """Name in the spelling of a model's name: plain lower case."""
    return re.sub(r"[^a-z0-9.-]+", "-", name.lower()).strip("-.")
