"""What the tests of the study share."""

from pathlib import Path

import pytest


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Make a folder with ``data/`` and ``results/``, as the study has them."""
    (tmp_path / "data").mkdir()
    (tmp_path / "results").mkdir()
    return tmp_path
