"""Sphinx configuration."""

from docutils import nodes
from latex2mathml.converter import convert

import sb3_per

project = "sb3_per"
author = copyright = "The sb3_per developers"
release = version = sb3_per.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = "sb3_per"
# The outputs that the notebook has are shown; nothing runs when the site is built.
nb_execution_mode = "off"
# The table of results is part of another page.
exclude_patterns = ["_build", "benchmarks/*.md"]
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
