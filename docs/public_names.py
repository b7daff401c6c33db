"""An extension of griffe: what a package imports `NAME as NAME` are its public names.

Type checkers have this rule too; griffe, which reads the package for the reference, knows only
`__all__`.
"""

from __future__ import annotations

import ast
from typing import Any

import griffe


class PublicNames(griffe.Extension):
    """Gives such names to modules without `__all__`."""

    def on_module_members(self, *, node: ast.AST, mod: griffe.Module, **kwargs: Any) -> None:
        """Run when all members of a module are known."""
        imports = [part for part in ast.walk(node) if isinstance(part, ast.ImportFrom)]
        aliases = [alias for part in imports for alias in part.names]
        if mod.exports is None and (names := [a.name for a in aliases if a.name == a.asname]):
            mod.exports = list(names)
