"""Type checkers accept the package, and every block of Python in README and documentation as it stands."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path
from subprocess import run

import pytest

from tests.helpers.pages import PAGES, name_of, pages
from tests.helpers.project import ROOT


@pytest.fixture(scope="module")
def snippets(tmp_path_factory) -> Path:
    """Make a module for each page, with its blocks at the same line numbers. pyproject.toml has settings for the package."""
    folder = tmp_path_factory.mktemp("pages") / "snippets"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for page in PAGES:
        lines: list[str] = []
        for block in pages.blocks_of(page):
            if block.language == "python":
                lines += [""] * (block.line - 1 - len(lines)) + block.code.splitlines()
        if lines:
            (folder / name_of(page).replace("/", "_").replace(".md", ".py")).write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.slow
def test_mypy_accepts_the_package_and_every_snippet(snippets):
    """In one run: most of its time goes into PyTorch and SB3."""
    done = run([sys.executable, "-m", "mypy", "sb3_per", "examples", str(snippets)], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(find_spec("pyright") is None, reason="needs pyright")
def test_pyright_accepts_every_snippet(snippets):
    settings = {"include": ["."], "extraPaths": [str(ROOT)]}
    (snippets / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--project", str(snippets), "--pythonpath", sys.executable]
    done = run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
