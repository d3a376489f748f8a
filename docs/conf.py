"""Sphinx configuration."""

import sb3_per

project = "sb3_per"
author = copyright = "The sb3_per developers"
release = version = sb3_per.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
html_theme = "sphinx_rtd_theme"
html_static_path = ["static"]
html_css_files = ["tables.css"]
# The table of results is part of another page.
exclude_patterns = ["_build", "benchmarks/*.md"]
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "none"
