"""Sphinx configuration."""

import sb3_per

project = "sb3_per"
author = copyright = "The sb3_per developers"
release = version = sb3_per.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
html_theme = "sphinx_rtd_theme"
exclude_patterns = ["_build"]
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "none"
