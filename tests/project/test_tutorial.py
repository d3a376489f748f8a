"""The notebook of the tutorial runs, can be read without running it, and its text agrees with its outputs."""

import json
import re

import matplotlib
import matplotlib.pyplot as plt
import pytest

from tests.utils import ROOT

NOTEBOOK = ROOT / "docs" / "tutorial.ipynb"
CELLS = json.loads(NOTEBOOK.read_text())["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def run(monkeypatch, folder) -> dict:
    """Run the notebook in an empty folder, without the files of the repository."""
    matplotlib.use("Agg")
    monkeypatch.chdir(folder)
    names: dict = {}
    with plt.rc_context():
        for number, cell in enumerate(CODE):
            exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    plt.close("all")
    return names


def test_the_notebook_runs_with_few_steps(monkeypatch, tmp_path):
    monkeypatch.setenv("SB3_PER_SHORT", "1")
    names = run(monkeypatch, tmp_path)
    assert all(len(steps) == 2 for steps in names["found"].values())
    assert len(names["snapshots"].rows) == len(names["snapshots"].steps) == 12


@pytest.mark.slow
def test_the_whole_notebook_finds_the_reward(monkeypatch, tmp_path):
    """Prioritized draws concentrate on the reward, and both kinds of runs reach it."""
    monkeypatch.delenv("SB3_PER_SHORT", raising=False)
    names = run(monkeypatch, tmp_path)
    assert all(steps.max() < 20_000 for steps in names["found"].values())
    assert names["log"]["per/buffer_effective_sample_size"].dropna().min() < 0.5


def outputs() -> list[dict]:
    return [output for cell in CODE for output in cell["outputs"]]


def test_the_notebook_is_stored_with_its_outputs():
    """Every cell has run, in order and without an error, and there are pictures."""
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    assert not [output for output in outputs() if output["output_type"] == "error" or output.get("name") == "stderr"]
    assert sum("image/png" in output.get("data", {}) for output in outputs()) >= 5
    assert NOTEBOOK.stat().st_size < 500_000


def test_figures_in_the_text_of_the_notebook_are_in_its_outputs():
    said = re.findall(r"\d+ \[\d+, \d+\]", " ".join("".join(c["source"]) for c in CELLS if c["cell_type"] == "markdown"))
    shown = "".join("".join(output.get("text", "")) for output in outputs())
    assert said
    assert [figure for figure in said if figure not in shown] == []
