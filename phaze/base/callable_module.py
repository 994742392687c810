"""Packages that can be called like the public function of the same name."""

from importlib import import_module
from types import ModuleType


class CallableModule(ModuleType):
    """Package whose call is that of the function of its name in `phaze.api`.

    `phaze.plan` is a function until something imports the package `phaze.plan`, which Python then binds to
    the same name. With this class as the package's `__class__`, `phaze.plan(...)` is the same call before and
    after (Python reference, "Customizing module attribute access").
    """

    def __call__(self, *arguments: object, **options: object) -> object:
        """Call the function of this name."""
        return getattr(import_module("phaze.api"), self.__name__.rpartition(".")[2])(*arguments, **options)
