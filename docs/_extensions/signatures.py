"""Signatures as a reader needs them.

The compiled module's have no types: they are taken from its stub. Classes that only the library makes have
none, since nobody calls them.
"""

from __future__ import annotations

import ast
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from sphinx.application import Sphinx

_NATIVE: Final = "kvcache._core."
_PUBLIC: Final = "kvcache.PrefixIndex"
_MADE_BY_CALLS: Final = frozenset(
    {
        "Eviction",
        "Hit",
        "ImageAdapter",
        "Installation",
        "Outcome",
        "Pin",
        "PressureSource",
        "Row",
        "Session",
        "SpanAdapter",
        "Stats",
        "Stored",
        "Study",
        "Trace",
    }
)


def read_stub() -> dict[str, tuple[str, str]]:
    """``Class.method`` to arguments and return type, as the stub writes them; a class has its own."""
    stub = ast.parse((resources.files("kvcache") / "_core.pyi").read_text(encoding="utf-8"))
    found = {}
    for cls in (node for node in stub.body if isinstance(node, ast.ClassDef)):
        for method in (node for node in cls.body if isinstance(node, ast.FunctionDef)):
            method.args.args = method.args.args[1:]
            name = cls.name if method.name == "__new__" else f"{cls.name}.{method.name}"
            returns = "" if name == cls.name or method.returns is None else ast.unparse(method.returns)
            found[name] = f"({ast.unparse(method.args)})", returns
    return found


_SIGNATURES: Final = read_stub()


def improve(
    _app: Sphinx, what: str, name: str, _object: Any, _options: Any, arguments: str, returns: str
) -> tuple[str, str] | None:
    """Sphinx asks here for each signature."""
    if what == "class" and name.rpartition(".")[2] in _MADE_BY_CALLS:
        return "", ""
    if not name.startswith((_NATIVE, _PUBLIC)):
        return None
    short = name.removeprefix(_NATIVE).removeprefix("kvcache.")
    return _SIGNATURES.get(short, (arguments, returns))


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the handler."""
    app.connect("autodoc-process-signature", improve)
    return {"parallel_read_safe": True}
