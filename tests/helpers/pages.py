"""The pages of the documentation."""

import re
from pathlib import Path

from tests.helpers.project import ROOT, benchmark

pages = benchmark("pages")

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts),
]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def check_make(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in arguments:
        name, is_variable, _ = word.partition("=")
        pattern = rf"^{name} \?=" if is_variable else rf"^{name}:"
        assert re.search(pattern, makefile, re.MULTILINE), f"The Makefile has no {name}"
