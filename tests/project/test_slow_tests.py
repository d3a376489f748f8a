"""No test is left out of `make test` without a reason in CONTRIBUTING.md."""

import re

from tests.helpers.project import ROOT

# A mark, or a list of parameters some of which have it: of `helpers/game.py` and `helpers/sbx_models.py`.
MARKS = re.compile(r"mark\.slow|import .*\bKINDS_TO_PLAY\b|sbx_models import .*\bnames\b")


def marked(code: str) -> bool:
    return bool(MARKS.search(code))


def listed() -> dict[str, list[str]]:
    """Return what is left out, and why, by file."""
    page = (ROOT / "CONTRIBUTING.md").read_text().partition("## Tests that `make test` leaves out")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    return {file: rest for files, *rest in rows for file in re.findall(r"`([^`]+)`", files)}


def test_files_with_slow_tests_are_listed_with_a_reason():
    tests = ROOT / "tests"
    files = {str(path.relative_to(tests)) for path in tests.rglob("test_*.py") if marked(path.read_text())}
    found = listed()
    assert set(found) == files - {"project/test_slow_tests.py"}
    assert all(len(rest) == 2 and all(rest) for rest in found.values())


def test_marks_are_found_where_a_helper_makes_them():
    assert marked("@pytest.mark.slow") and marked("from tests.helpers.game import KINDS, KINDS_TO_PLAY")
    assert marked("from tests.helpers.sbx_models import make, names, shared") and not marked("from x import named_at")
