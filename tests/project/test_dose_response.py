"""The dose-response benchmark: its task, when a run is solved, and a report that finds a slope."""

import csv

import numpy as np
import pytest
import torch as th
from matplotlib.text import Text

from sb3_per.compare.campaign import read
from tests.utils import ROOT, benchmark

dose = benchmark("dose_response")
dose_report = benchmark("dose_report")
EVIDENCE = ROOT / "docs" / "evidence"


@pytest.mark.parametrize("seed", [3, 13])
def test_every_action_of_every_state_is_in_the_buffer(seed):
    """No transition shows the value of a missing action. Seed 13 of n = 11 needs several draws to have all actions."""
    task = dose.Cliffwalk(11, seed)
    assert len(task.states) == 2**12
    assert len(set(zip(task.states.tolist(), task.is_right.tolist(), strict=True))) == 22
    assert (task.rewards == (task.is_right & (task.states == 10))).all() and task.rewards.any()
    follows = np.where(task.is_right & ~task.rewards, task.states + 1, 0)
    np.testing.assert_array_equal(task.states[1:], follows[:-1])


class Values(th.nn.Module):
    """A network that returns given values."""

    def __init__(self, values: np.ndarray):
        super().__init__()
        self.values = th.as_tensor(values)

    def forward(self, observations: th.Tensor) -> th.Tensor:
        return self.values


class Model:
    def __init__(self, values: np.ndarray):
        self.q_net = Values(values)


def test_solved_is_near_the_true_values_and_ahead_of_the_wrong_action():
    task = dose.Cliffwalk(6, 0)
    assert task.true_values == pytest.approx([(5 / 6) ** k for k in (5, 4, 3, 2, 1, 0)])
    states, right = np.arange(6), task.right_actions
    values = np.zeros((6, 2))
    values[states, right] = 0.8 * task.true_values
    assert task.is_solved(Model(values))
    values[2, 1 - right[2]] = 0.4 * task.true_values[2]
    assert not task.is_solved(Model(values))
    values[2] = 0.0
    values[2, right[2]] = 0.7 * task.true_values[2]
    assert not task.is_solved(Model(values))


@pytest.mark.parametrize("arm", ["uniform", "shuffled, defaults"])
def test_a_run_is_reproducible_and_ends_when_solved(arm):
    first = dose.updates_until_solved(6, arm, 1e-3, 1)
    assert first["solved"] == 1 and 0 < first["updates"] < 5_000 and first["updates"] % dose.PERIOD == 0
    assert dose.updates_until_solved(6, arm, 1e-3, 1) == first


def test_choosing_and_reporting_seeds_are_different():
    assert all(set(seeds).isdisjoint(dose.REPORTING) for seeds in dose.CHOOSING.values())


def rows_of(n_seeds: int) -> list[dict[str, str]]:
    """Make rows in which the gain of each arm doubles with each fourth n, controls gain nothing, and 1e-3 is the best rate."""
    rows = []
    for name, _ in dose.choosing_jobs():
        rows.append({**name, "updates": 100 if name["learning_rate"] == 1e-3 else 200, "solved": 1})
    for name, _ in dose.reporting_jobs(dose.chosen_rates(rows)):
        if name["seed"] in dose.REPORTING[:n_seeds]:
            gain = 1.0 if "uniform" in name["arm"] or "shuffled" in name["arm"] else 2.0 ** (name["n_states"] / 4)
            updates = 2.0 ** name["n_states"] * (1 + 0.01 * name["seed"]) / gain
            rows.append({**name, "updates": updates, "solved": int(name["n_states"] < 16)})
    return [{key: str(value) for key, value in row.items()} for row in rows]


def test_the_report_finds_the_slope_from_complete_seeds(tmp_path):
    rows = rows_of(8)
    assert set(dose.chosen_rates(rows).values()) == {1e-3}
    text = "\n".join(dose_report.report(rows[:-1]))
    assert text.startswith("7 seeds, 200 to 206")
    assert f"| defaults | the uniform twin | {2**0.25:.3f} | 0.125 |" in text  # 2 / 2^7, times eight by Holm
    assert f"| no weights | `shuffled, no weights` | {2**0.25:.3f} |" in text
    assert "| shuffled, defaults | the uniform twin | 1.000 | 1.000 |" in text
    with (tmp_path / "dose-response.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    dose_report.main(["--out", str(tmp_path)])
    assert (tmp_path / "dose-response.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "dose-response.md").read_text().startswith("8 seeds")


def test_the_figure_can_be_read_on_a_phone_and_counts_stopped_runs(monkeypatch, tmp_path):
    """Text has at least 11 pixels where the figure is 360 pixels wide."""
    drawn: list = []
    monkeypatch.setattr(dose_report, "save", lambda figure, path: drawn.append(figure))
    rows = read(EVIDENCE / "dose-response.csv")
    dose_report.draw(rows, tmp_path / "figure.png")
    texts = [text for text in drawn[0].findobj(Text) if text.get_text()]
    assert min(text.get_size() / 72 / drawn[0].get_figwidth() * 360 for text in texts) >= 11
    _, _, solved = dose_report.load(rows)
    n_stopped = {str(count) for arm in dose.ARMS if (count := (~solved[arm][:, -1]).sum())}
    assert n_stopped <= {text.get_text() for text in texts}


def test_no_run_ends_before_the_target_network_was_copied_for_each_state():
    _, updates, _ = dose_report.load(read(EVIDENCE / "dose-response.csv"))
    floor = [dose_report.floor_of(n) for n in dose.SIZES]
    assert all((each >= floor).all() for each in updates.values())


def test_the_published_table_follows_from_the_runs():
    rows = read(EVIDENCE / "dose-response.csv")
    assert (EVIDENCE / "dose-response.md").read_text() == "\n".join(dose_report.report(rows)).rstrip() + "\n"
