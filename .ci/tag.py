"""
Check that a tag names the version of the package, and that the changelog has a section for it.

    python .ci/tag.py v0.1.0
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def check(tag: str) -> None:
    """
    Check a tag.

    :param tag: name of the tag, e.g. "v0.1.0"
    :raises SystemExit: if it does not fit; the message says what to change
    """
    found = re.search(r'^__version__ = "(.+)"$', (ROOT / "sb3_per" / "__init__.py").read_text(), re.MULTILINE)
    if found is None or tag != f"v{found[1]}":
        raise SystemExit(f"The tag {tag} is not v and the version of sb3_per/__init__.py, {found and found[1]}")
    heading = re.search(rf"^## {re.escape(found[1])} \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    if heading is None or re.fullmatch(r"\d{4}-\d\d-\d\d", heading[1]) is None:
        raise SystemExit(f"CHANGELOG.md has no heading with a date for this version, such as ## {found[1]} (2026-11-28)")


if __name__ == "__main__":
    check(sys.argv[1])
