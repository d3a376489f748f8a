"""Sphinx configuration."""

from docutils import nodes
from latex2mathml.converter import convert

import sb3_per

project = "sb3_per"
author = copyright = "The sb3_per developers"
release = version = sb3_per.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "sphinx_rtd_theme"
html_static_path = ["static"]
html_css_files = ["tables.css"]
# The table of results is part of another page.
exclude_patterns = ["_build", "benchmarks/*.md", "evidence/*.md"]
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "none"
# Browsers render MathML themselves: no script from elsewhere, so that formulas are there offline.
html_math_renderer = "mathml"


def _inline(translator, node):
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _display(translator, node):
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


def setup(app):
    """Formulas as MathML."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
