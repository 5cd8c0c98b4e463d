"""How Sphinx makes the site of these documents (`make docs`). Its source is the root of the checkout.

So README, CONTRIBUTING and CHANGELOG are pages as they are, and each link that works on a Git host works on the site.
What is made from the code (reference, commands, variables) is made by ``_ext/generated.py``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "docs" / "_ext")]

# TensorFlow tells, at its import, of GPUs and of instructions that it has not found or used. Nothing trains here.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from generated import PUBLIC  # noqa: E402

from ddl._version import __version__  # noqa: E402

project = "DDL"
author = "the authors of DDL"
release = version = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "docstrings", "generated"]

root_doc = "docs/index"
source_suffix = {".md": "markdown"}
_PAGES = ("docs", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
#: Sphinx looks at nothing else: an environment in the checkout has thousands of files.
exclude_patterns = [entry.name for entry in ROOT.iterdir() if entry.name not in _PAGES]
exclude_patterns += ["docs/_*"]

# Markdown, as a Git host reads it: links to headings by GitHub's rule for their names.
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
smartquotes = False  # two dashes are an option
highlight_language = "none"  # an indented block is a command with its output

# What is not installed is replaced by a stand-in, so that its adapter can be imported and described.
autodoc_mock_imports = [
    name
    for name in (
        *("caffe", "chainer", "chainermn", "theano", "torch", "tensorflow", "keras", "torchft"),
        "lightning",
        *("lightgbm", "xgboost", "distributed", "ray", "pyspark", "pyarrow"),
        *("jax", "jaxlib", "optax"),
    )
    if importlib.util.find_spec(name) is None
]
autodoc_inherit_docstrings = False  # of what is from Keras, say
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# Every name of ours that a page refers to must have its entry. Names of others (torch.Tensor) have none here, as the
# site asks no other host for theirs.
nitpicky = True
# Nor have classes of ours that only stand in a signature.
nitpick_ignore_regex = [("py:.*", r"(?!ddl).*"), ("py:class", rf"(?!({'|'.join(PUBLIC)})\.\w+$).*")]
suppress_warnings = ["ref.python"]  # a class has an entry under each name by which a user may call it

html_theme = "furo"
html_title = f"DDL {release}"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_extra_path = ["_root"]  # the address of the site itself leads to the front door
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "monokai"
