"""Sphinx settings. ``make docs`` builds strictly: a warning is an error, nothing is fetched."""

from __future__ import annotations

import sys
from pathlib import Path

import kvcache

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "kvcache"
# The workspace's Cargo.toml has the version; the extension module carries it here.
version = release = kvcache.__version__
html_title = f"kvcache {release}"
highlight_language = "text"
html_theme = "furo"
html_theme_options = {"navigation_with_keys": True}
html_static_path = ["_static"]
html_css_files = ["kvcache.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "command_help",
    "crossrefs",
    "signatures",
    "tree_drawing",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist", "substitution"]
myst_substitutions = {"release": release}
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_default_options = {"exclude-members": "__new__, __init__"}
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Complexity", "returns_style")]
# Docstrings of the native module put code between single backticks.
default_role = "literal"

nitpicky = True
# mlx and numpy bring no inventory in their wheels, and a build fetches none.
nitpick_ignore = [
    ("py:class", "Array"),  # kvcache.arrays has mx.array under this name
    ("py:class", "NDArray"),
    ("py:class", "mlx.core.array"),
    ("py:class", "mx.array"),
    ("py:class", "mx.distributed.Group"),
    ("py:class", "np.int32"),
]
