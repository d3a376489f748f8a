"""The notebook of the tutorial runs alone, and can be read without running it."""

import json

import matplotlib
import matplotlib.pyplot as plt
import pytest

from tests.helpers.project import ROOT

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
# What makes a run short: numbers of the notebook, and those of a test.
SHORTER = {"STEPS = 8_000": "STEPS = 1_200", "range(10)": "range(2)", "learn(20_000": "learn(1_000"}


def run(monkeypatch, folder, shorter) -> dict:
    """Run the notebook in an empty folder, without the files of the repository."""
    matplotlib.use("Agg")
    monkeypatch.chdir(folder)
    source = ["".join(cell["source"]) for cell in CODE]
    for number, other in shorter.items():
        assert number in "".join(source)
        source = [text.replace(number, other) for text in source]
    names: dict = {}
    with plt.rc_context():
        for number, text in enumerate(source):
            exec(compile(text, f"cell {number}", "exec"), names)
    plt.close("all")
    return names


@pytest.mark.slow
def test_the_notebook_runs_with_few_steps(monkeypatch, tmp_path):
    names = run(monkeypatch, tmp_path, SHORTER)
    assert all(len(steps) == 2 for steps in names["found"].values())
    assert len(names["snapshots"].rows) == len(names["snapshots"].steps) == 12


@pytest.mark.slow
def test_the_whole_notebook_shows_a_gain(monkeypatch, tmp_path):
    """All runs reach the end, and prioritized draws of the last state are several times as many as uniform ones."""
    names = run(monkeypatch, tmp_path, {})
    assert all(steps.max() < 20_000 for steps in names["found"].values())
    assert names["saved"].mean() > 0


def outputs() -> list[dict]:
    return [output for cell in CODE for output in cell["outputs"]]


def test_the_notebook_is_stored_with_its_outputs():
    """Every cell has run, in order and without an error, and there are pictures."""
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    assert not [output for output in outputs() if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs()) == 4
    assert NOTEBOOK.stat().st_size < 500_000
