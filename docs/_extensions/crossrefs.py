"""Names in signatures that the page at hand does not import, and names of the standard library.

A class is defined in one module and public in another (``kvcache.results.Hit`` is ``kvcache.Hit``):
references find it under its public name. Links to Python's documentation are made by rule; no inventory
is fetched.
"""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, Final, cast

from docutils import nodes

import kvcache

if TYPE_CHECKING:
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.domains.python import PythonDomain
    from sphinx.environment import BuildEnvironment

_PYTHON: Final = "https://docs.python.org/3/library"
# Short names that annotations use, and where Python documents them.
_ABSTRACT: Final = ("Callable", "Hashable", "Iterator", "Mapping", "Sequence")
_TYPING: Final = ("Any", "Literal", "Self")
# Types that are public where their users are documented.
_PLACES: Final = {
    "Adapter": "kvcache.layers",
    "Budget": "kvcache.replay.budgets",
    "Evicted": "kvcache._core",
    "GcPolicy": "kvcache.memory.reclaim",
    "Image": "kvcache.layers",
    "ImageAdapter": "kvcache.layers",
    "IndexStats": "kvcache._core",
    "Inserted": "kvcache._core",
    "Installation": "kvcache.integrations.mlx_lm.patching",
    "Match": "kvcache._core",
    "Outcome": "kvcache.replay.simulate",
    "Refusal": "kvcache.layers",
    "SpanAdapter": "kvcache.layers",
} | {name: "kvcache" for name in kvcache.__all__ if name[0].isupper()}


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Sphinx asks here for what it does not find by itself."""
    if node.get("refdomain") != "py":
        return None
    target = node["reftarget"]
    name = target.rpartition(".")[2]
    if name in _PLACES and (target == name or target.startswith("kvcache.")):
        domain = cast("PythonDomain", env.get_domain("py"))
        full = f"{_PLACES[name]}.{name}"
        return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", full, node, content)
    uri = _python_uri(target.removeprefix("collections.abc.").removeprefix("typing."))
    return None if uri is None else nodes.reference("", "", content, internal=False, refuri=uri)


def _python_uri(name: str) -> str | None:
    if name in _ABSTRACT:
        return f"{_PYTHON}/collections.abc.html#collections.abc.{name}"
    if name in _TYPING:
        return f"{_PYTHON}/typing.html#typing.{name}"
    if name.endswith("AbstractContextManager"):
        return f"{_PYTHON}/contextlib.html#contextlib.AbstractContextManager"
    if name in ("Path", "pathlib.Path"):
        return f"{_PYTHON}/pathlib.html#pathlib.Path"
    if isinstance(getattr(builtins, name, None), type):
        page = "exceptions" if issubclass(getattr(builtins, name), BaseException) else "stdtypes"
        return f"{_PYTHON}/{page}.html#{name}"
    return f"{_PYTHON}/constants.html#None" if name == "None" else None


def setup(app: Sphinx) -> dict[str, Any]:
    """Registers the handler."""
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}
