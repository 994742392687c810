"""Libraries of optional parts of phaze, and the extras that install them."""

from __future__ import annotations

from importlib.util import find_spec

from phaze.base.errors import PhazeError

EXTRAS = {
    "pandas": "studies",
    "pyarrow": "studies",
    "pyomo": "studies",
    "networkx": "studies",
    "snakemake": "studies",
    "altair": "pages",
    "vl_convert": "pages",
    "jinja2": "pages",
    "pygments": "pages",
    "torch": "torch",
    "torchvision": "torch",
    "timm": "torch",
    "transformers": "torch",
}
"""Extra of each library that phaze can do without."""


def needs(*libraries: str) -> None:
    """Raise PhazeError, naming the extra to install, if a library is missing."""
    for library in libraries:
        try:
            is_installed = find_spec(library) is not None
        except ModuleNotFoundError:
            is_installed = False
        if not is_installed:
            raise missing(library)


def missing(library: str) -> PhazeError:
    """Error for a missing library, with the command that installs its extra."""
    extra = EXTRAS[library]
    return PhazeError(
        f"this needs {library}, which is not installed",
        f"install the extra {extra}: pip install '.[{extra}]' in a checkout of phaze-planner",
    )
