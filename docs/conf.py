"""Sphinx configuration."""

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.environment.adapters.toctree import document_toc

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
exclude_patterns = ["_build", "benchmarks/**"]
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "none"
# Two hyphens are the beginning of an option, and no dash.
smartquotes_action = "qe"
# Browsers render MathML themselves: no script from elsewhere, so that formulas are there offline.
html_math_renderer = "mathml"


def _inline(translator, node):
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _display(translator, node):
    translator.body.append(f'<div class="math">{convert(node.astext(), display="block")}</div>')
    raise nodes.SkipNode


# Entries from which on a page begins with a list of them, and how deep it goes: sections and what they define, but no methods.
_LONG, _DEPTH = 6, 2


def _add_contents(app, doctree, docname):
    """Begin a long page with a table of contents: the theme shows its own on wide screens only."""
    found = document_toc(app.env, docname, app.tags)
    page = next(found.findall(nodes.list_item), None)
    entries = next((part for part in page.children if isinstance(part, nodes.bullet_list)), None) if page else None
    if entries is None or docname == app.config.root_doc:
        return
    for item in list(entries.findall(nodes.list_item)):
        if _depth_of(item, entries) == _DEPTH:
            for part in [part for part in item.children if isinstance(part, nodes.bullet_list)]:
                item.remove(part)
    if len(list(entries.findall(nodes.list_item))) >= _LONG:
        title = next(doctree.findall(nodes.title))
        title.parent.insert(title.parent.index(title) + 1, nodes.container("", entries, classes=["page-contents"]))


def _depth_of(item, top):
    """Count the lists from an item to the topmost one."""
    depth, part = 0, item
    while part is not top:
        part = part.parent
        depth += isinstance(part, nodes.bullet_list)
    return depth


def setup(app):
    """Formulas as MathML, and a table of contents on long pages."""
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    app.connect("doctree-resolved", _add_contents)
