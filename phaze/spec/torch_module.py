"""PyTorch modules to trace: the callable that creates a module, and the module's inputs.

Unlike other specs this one runs code: only `workload.families.traced` calls it, and needs `--run-code`.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from phaze.base.errors import PhazeError
from phaze.spec.files import read_mapping
from phaze.spec.models import file_name
from phaze.spec.noun import Noun
from phaze.spec.plain import Plain, read_json
from phaze.spec.values import Count, Flag, Label, Name

USUAL_SEQUENCE = 1024
"""Default tokens per sample for models from a published configuration."""
CONFIGURED = "phaze.workload.families.traced.record:causal_language_model"
"""Callable that creates the model of a published configuration; it runs only code of `transformers`."""
ASIDE = ("quantization_config", "auto_map", "torch_dtype", "dtype", "transformers_version")
"""Configuration fields that describe the checkpoint, not the trained model."""
Scalar = bool | int | float | str | None
ImportPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", max_length=200)]


class TorchInput(Noun):
    """Input tensor of a module."""

    shape: Annotated[tuple[Count, ...], Field(max_length=8)]
    """Shape for one sample; the microbatch is added as the first dimension."""
    kind: Literal["real", "index"] = "real"
    """`real` for real numbers, `index` for indices such as token ids."""


class TorchCall(Noun):
    """Call to a callable of an installed package."""

    torch: ImportPath
    """The callable, as `package:callable`."""
    arguments: dict[Label, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """Keyword arguments."""


class TorchModule(Noun):
    """PyTorch module that a callable of an installed package creates."""

    name: Name
    """Name of the model; default: the file name."""
    torch: ImportPath
    """The callable, as `package:callable`; it is called with the arguments and returns the module."""
    arguments: dict[Label, Scalar | tuple[Scalar, ...] | TorchCall] = Field(default_factory=dict)
    """Keyword arguments; a value may be the result of another callable, such as a configuration."""
    inputs: dict[Label, TorchInput] = Field(min_length=1)
    """Inputs of the module by keyword; a single one is passed by position."""
    causal: Flag = False
    """Causal attention: a token attends only to earlier ones. True for models from a `config.json`."""

    @property
    def tokens(self) -> int:
        """Tokens per sample, from the shape of the index input; 1 for an image."""
        return next((tensor.shape[-1] for tensor in self.inputs.values() if tensor.kind == "index"), 1)


def load_torch_module(path: str | Path, sequence: int = USUAL_SEQUENCE) -> TorchModule:
    """Load the spec of a PyTorch module from a YAML file or `config.json`, without running code.

    For a `config.json` it is the model that `transformers` makes, with samples of `sequence` tokens. Raises
    PhazeError.
    """
    path = Path(path)
    if path.suffix == ".json":
        return _configured_module(read_json(path), path, sequence)
    return TorchModule.parse({"name": path.stem, **read_mapping(path)}, str(path))


def _configured_module(config: Plain, path: Path, sequence: int) -> TorchModule:
    """Causal language model of a configuration, with its loss; of a multimodal model, the text part.

    The attention mask has four dimensions, which `transformers` uses as is.
    """
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise PhazeError(f"{path}: must hold a JSON object with model_type")
    text = config.get("text_config")
    text_config = {"model_type": config["model_type"]} | text if isinstance(text, dict) else config
    fields = {key: value for key, value in text_config.items() if key not in ASIDE}
    return TorchModule(
        name=file_name(path),
        torch=CONFIGURED,
        arguments={"config": json.dumps(fields)},
        inputs={
            "input_ids": TorchInput(shape=(sequence,), kind="index"),
            "attention_mask": TorchInput(shape=(1, sequence, sequence)),
            "labels": TorchInput(shape=(sequence,), kind="index"),
        },
        causal=True,
    )
