"""A PyTorch module to trace: which callable makes it, and what it reads.

Such a spec runs code, unlike others: nothing loads it but `workload.families.traced`, which says so.
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
from phaze.spec.values import Count, Flag, Name

USUAL_SEQUENCE = 1024
"""Tokens of a sample of a model that a configuration describes, unless given."""
CONFIGURED = "phaze.workload.families.traced.record:causal_language_model"
"""Callable that makes the model of a published configuration; it runs no code but that of `transformers`."""
ASIDE = ("quantization_config", "auto_map", "torch_dtype", "dtype", "transformers_version")
"""Fields of a configuration about the checkpoint, not about the model that is trained."""
Scalar = bool | int | float | str | None
ImportPath = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$", max_length=200)]


class TorchInput(Noun):
    """A tensor that a module reads."""

    shape: Annotated[tuple[Count, ...], Field(max_length=8)]
    """Sizes for one sample; the microbatch comes before them."""
    kind: Literal["real", "index"] = "real"
    """Real numbers, or indices such as token ids."""


class TorchCall(Noun):
    """A call of a callable of an installed package."""

    torch: ImportPath
    """The callable as `package:callable`."""
    arguments: dict[str, Scalar | tuple[Scalar, ...]] = Field(default_factory=dict)
    """Keyword arguments."""


class TorchModule(Noun):
    """A PyTorch module, made by a callable of an installed package."""

    name: Name
    """Name of the model; by default that of its file."""
    torch: ImportPath
    """The callable as `package:callable`; it runs with the arguments and returns the module."""
    arguments: dict[str, Scalar | tuple[Scalar, ...] | TorchCall] = Field(default_factory=dict)
    """Keyword arguments; one may itself be what another callable returns, such as a configuration."""
    inputs: dict[str, TorchInput] = Field(min_length=1)
    """What the module is called with, by keyword; a single one is passed by position."""
    causal: Flag = False
    """A token attends only to those before it; true of what `transformers` makes of a `config.json`."""

    @property
    def tokens(self) -> int:
        """Tokens of a sample, each an index; 1 for an image."""
        return next((one.shape[-1] for one in self.inputs.values() if one.kind == "index"), 1)


def load_torch_module(path: str | Path, sequence: int = USUAL_SEQUENCE) -> TorchModule:
    """Spec of a PyTorch module of a YAML file, or of the model that `transformers` makes of a published
    `config.json` for samples of `sequence` tokens, without running anything; raises PhazeError.
    """
    path = Path(path)
    if path.suffix == ".json":
        return _configured(read_json(path), path, sequence)
    return TorchModule.parse({"name": path.stem, **read_mapping(path)}, str(path))


def _configured(config: Plain, path: Path, sequence: int) -> TorchModule:
    """The causal language model of a configuration, with its loss; of one of several kinds of input that of
    text. A mask of four dimensions is taken as it is.
    """
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise PhazeError(f"{path}: must hold a JSON object with model_type")
    text = config.get("text_config")
    own = {"model_type": config["model_type"]} | text if isinstance(text, dict) else config
    fields = {key: value for key, value in own.items() if key not in ASIDE}
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
