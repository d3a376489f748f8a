"""The dose-response benchmark: its task, when a run is solved, and a report that finds a slope."""

import numpy as np
import pytest
import torch as th
from matplotlib.text import Text

from sb3_per.compare.campaign import read
from study import campaign, figures, report
from study import dose_response as dose

DATA = campaign.ROOT / "data"


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
    first = dose.train(6, arm, "", 1e-3, 1)
    assert first["solved"] == 1 and 0 < first["updates"] < 5_000 and first["updates"] % dose.PERIOD == 0
    assert dose.train(6, arm, "", 1e-3, 1) == first


def test_the_largest_size_takes_the_rates_of_the_one_before():
    """In these runs, 1e-3 is the best rate at n = 14, and 3e-4 elsewhere."""
    each = dose.CAMPAIGN
    rows = [
        {**name, "updates": 100 if (rate == 1e-3) == (n_states == 14) else 200}
        for name, (n_states, _, _, rate, _) in campaign.all_choosing_jobs(each, [])
    ]
    rows = [{key: str(value) for key, value in row.items()} for row in rows]
    chosen = {run[0]: run[3] for _, run in campaign.reporting_jobs(each, rows)}
    assert chosen == {**dict.fromkeys(dose.SIZES, 3e-4), 14: 1e-3, 16: 1e-3}


def test_the_report_finds_the_slope(out):
    """The gain of each arm doubles with each fourth n, and controls gain nothing."""
    each = dose.CAMPAIGN
    rows = read(DATA / "dose-response.csv")
    for row in rows:
        gain = 1.0 if "uniform" in row["arm"] or "shuffled" in row["arm"] else 2.0 ** (int(row["n_states"]) / 4)
        if int(row["seed"]) in each.reporting:
            row["updates"] = str(2.0 ** int(row["n_states"]) * (1 + 0.01 * int(row["seed"])) / gain)
    text = "\n".join(report.report(each, rows, []))
    assert f"| defaults | uniform | slope over the size | {2**0.25:.3f} | < 0.001 |" in text
    assert f"| no weights | shuffled, no weights | slope over the size | {2**0.25:.3f} |" in text
    assert "| shuffled, defaults | uniform | slope over the size | 1.000 | 1.000 |" in text


def test_the_figure_can_be_read_on_a_phone_and_counts_stopped_runs(monkeypatch, out):
    """Text has at least 11 pixels where the figure is 360 pixels wide."""
    drawn: list = []
    monkeypatch.setattr(figures, "save", lambda figure, path: drawn.append(figure))
    each, rows = dose.CAMPAIGN, read(DATA / "dose-response.csv")
    solved = report.solved_of(each, rows)
    report.draw(each, rows, out / "results" / "figure.png")
    texts = [text for text in drawn[0].findobj(Text) if text.get_text()]
    assert min(text.get_size() / 72 / drawn[0].get_figwidth() * 360 for text in texts) >= 11
    n_stopped = {str(count) for arm in dose.ARMS if (count := (~solved[arm][:, -1]).sum())}
    assert n_stopped <= {text.get_text() for text in texts}


def test_no_run_ends_before_the_target_network_was_copied_for_each_state():
    scores = report.scores_of(dose.CAMPAIGN, read(DATA / "dose-response.csv"))
    floor = [dose.floor_of(n) for n in dose.SIZES]
    assert all((np.exp(-each) >= np.array(floor) - 1e-6).all() for each in scores.values())
