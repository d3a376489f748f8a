"""The benchmark of speed runs."""

import json
import subprocess
import sys

import pytest

from tests.helpers.project import ROOT


@pytest.mark.slow
def test_every_published_row_can_be_measured(tmp_path):
    pytest.importorskip("cpprb", reason="needs the extra benchmark")
    command = [sys.executable, str(ROOT / "benchmarks" / "speed.py"), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    published = json.loads((ROOT / "docs" / "benchmarks" / "speed.json").read_text())["rows"]
    assert set(published) <= set(rows)
