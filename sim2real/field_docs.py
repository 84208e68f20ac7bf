"""What the docstrings below the fields of a class say."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Iterator

__all__ = ["field_docs"]


def field_docs(kind: type) -> dict[str, str]:
    """Return what stands below each field of a class, in one line; without a docstring or source, nothing."""
    try:
        source = inspect.getsource(kind)
    except OSError:
        return {}
    (definition,) = ast.parse(textwrap.dedent(source)).body
    assert isinstance(definition, ast.ClassDef)
    return dict(_documented(definition.body))


def _documented(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for field, below in itertools.pairwise(body):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            yield field.target.id, " ".join(str(below.value.value).split())
