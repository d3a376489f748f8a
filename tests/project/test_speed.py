"""The benchmarks of speed run."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers.project import ROOT, benchmark


@pytest.mark.slow
def test_every_published_row_can_be_measured(tmp_path):
    pytest.importorskip("cpprb", reason="needs the extra benchmark")
    command = [sys.executable, str(ROOT / "benchmarks" / "speed.py"), "--quick", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    published = json.loads((ROOT / "docs" / "benchmarks" / "speed.json").read_text())["rows"]
    assert set(published) <= set(rows)


@pytest.mark.slow
def test_two_checkouts_can_be_compared():
    command = [sys.executable, str(ROOT / "benchmarks" / "against.py"), str(ROOT), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr  # 1: a row was slower, which two turns do not show
    ratios = [float(re.findall(r" (\d+\.\d{3}) ", line)[0]) for line in done.stdout.splitlines()]
    # The same code takes the same time, however noisy the machine is.
    assert len(ratios) > 20 and 0.5 < np.median(ratios) < 2


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["{tmp}"], "is not a checkout"),
        (["{root}", "--only", "nothing"], "no row has 'nothing' in its name"),
        ([], "required: other"),
    ],
)
def test_a_comparison_needs_a_checkout_and_a_row(tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.setattr(sys, "argv", ["against.py", *(word.format(tmp=tmp_path, root=ROOT) for word in arguments)])
    with pytest.raises(SystemExit, match="2"):
        benchmark("against").main()
    assert message in capsys.readouterr().err
