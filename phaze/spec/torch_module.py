"""A PyTorch module to trace: which callable makes it, and what it reads.

Such a spec runs code, unlike others: nothing loads it but `workload.families.traced`, which says so.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from phaze.spec.files import read_mapping
from phaze.spec.noun import Noun
from phaze.spec.values import Count, Name

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

    @property
    def tokens(self) -> int:
        """Tokens of a sample, each an index; 1 for an image."""
        return next((one.shape[-1] for one in self.inputs.values() if one.kind == "index"), 1)


def load_torch_module(path: str | Path) -> TorchModule:
    """Spec of a PyTorch module of a YAML file, without running anything; raises PhazeError."""
    fields = read_mapping(Path(path))
    return TorchModule.parse({"name": Path(path).stem, **fields}, str(path))
