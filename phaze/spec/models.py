"""Models by the names of their specs, read from config/models."""

from pathlib import Path

from phaze.base.errors import PhazeError
from phaze.spec.files import FOLDER, named_file
from phaze.spec.model import AnyModel, Model, load_model


def load_model_named(model: str, folder: Path = FOLDER) -> AnyModel:
    """Model by the name of its spec in config/models, or by the path of a spec."""
    return load_model(_model_path(model, folder))


def load_transformer(name: str, where: str, folder: Path = FOLDER) -> Model:
    """Transformer by the name of its spec in config/models, or by the path of a spec or a `config.json`.

    Raises PhazeError for a name that there is not, with the nearest, and for another kind of model; `where`
    says who asked.
    """
    model = load_model_named(name, folder)
    if not isinstance(model, Model):
        raise PhazeError(f"{where}: {name} must be a transformer, got {type(model).__name__}")
    return model


def _model_path(model: str, folder: Path) -> Path:
    if "/" in model or model.endswith((".yaml", ".yml", ".json")):
        return Path(model)
    return named_file("model", model, folder / "models")
