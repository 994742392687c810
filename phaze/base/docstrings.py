"""Docstrings below the fields of classes, which describe them on reference pages, in help and in tables.

Python itself does not store them. Parsing the source takes time and only generated documentation needs it;
pydantic's `use_attribute_docstrings` would do it for every class in every process.
"""

import ast
import inspect
import sys
from dataclasses import is_dataclass
from functools import cache
from itertools import pairwise


def documentation_of(kind: type) -> dict[str, str]:
    """Docstrings of the documented fields of a dataclass or pydantic model, by field name."""
    docstrings: dict[str, str] = {}
    # Base classes first, so that a derived class may document a field anew.
    for base in reversed(kind.__mro__):
        has_fields = is_dataclass(base) or hasattr(base, "model_fields")
        if has_fields and not base.__module__.startswith("pydantic"):
            docstrings |= _documented(base.__module__)[base.__name__]
    return docstrings


@cache
def _documented(module: str) -> dict[str, dict[str, str]]:
    """Docstrings of the fields of every class in a module, by class name and field name."""
    return {
        noun.name: {
            ast.unparse(field.target): inspect.cleandoc(text.value.value)
            # A field's docstring is the expression right below its annotation.
            for field, text in pairwise(noun.body)
            if isinstance(field, ast.AnnAssign)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        }
        for noun in ast.parse(inspect.getsource(sys.modules[module])).body
        if isinstance(noun, ast.ClassDef)
    }
