"""Equal time: steps of the arms at a budget, what a run keeps, and the tests of made-up rows."""

import numpy as np
import pytest

from study import campaign, report, wall_clock

WALL = wall_clock.CAMPAIGN


@pytest.mark.parametrize("price", wall_clock.PRICES)
@pytest.mark.parametrize("task", WALL.tasks)
def test_all_arms_take_the_same_time_but_for_half_a_bin(task, price):
    budget = wall_clock.STEPS * wall_clock.milliseconds(task, 1, price)
    for arm, (_, n_updates) in wall_clock.ARMS.items():
        a_step = wall_clock.milliseconds(task, n_updates, price)
        assert abs(wall_clock.steps_of(task, arm, price) * a_step - budget) <= wall_clock.BIN / 2 * a_step + 1e-6
    assert wall_clock.steps_of(task, "uniform, 1 a step", price) == wall_clock.STEPS


def test_bins_are_means_of_eight_episodes_and_empty_after_the_end():
    found = wall_clock.columns_of([*range(16)])
    assert (found["250"], found["500"], found["750"], found["16000"]) == (3.5, 11.5, "", "")


def test_scores_are_of_the_bins_before_a_budget():
    task, arm = "ReacherHard", "uniform, 16 a step"
    first, second = (wall_clock.steps_of(task, arm, price) for price in wall_clock.PRICES)
    assert first < second
    steps = range(250, wall_clock.STEPS + 1, 250)
    row = {"task": task, "arm": arm, **{str(s): "1" if s <= first else "5" if s <= second else "" for s in steps}}
    assert wall_clock.score_at("EnvPool", row) == 1.0
    assert wall_clock.score_at("10 ms", row) == pytest.approx((first + 5 * (second - first)) / second)
    assert wall_clock.end_at("10 ms", row) == 5.0


def rows_of(jobs, value) -> list[dict[str, str]]:
    rows = []
    for name, run in jobs:
        n = max(wall_clock.steps_of(run[0], run[1], price) for price in wall_clock.PRICES)
        bins = {str(s): str(value(*run)) if s <= n else "" for s in range(250, wall_clock.STEPS + 1, 250)}
        rows.append({key: str(each) for key, each in name.items()} | bins)
    return rows


def made_rows() -> list[dict[str, str]]:
    """Uniform is best at 16 updates with 20, no weights at 4 with 30, controls have 10; a random policy has 1."""
    best = {"uniform, 16 a step": 20.0, "no weights, 4 a step": 30.0, "defaults, 1 a step": 25.0, "random": 1.0}

    def value(task, arm, option, rate, seed) -> float:
        return best.get(arm, 10.0) - (0.0 if rate in (1e-3, 1.0) else 5.0)

    rows = rows_of([campaign.job(WALL, *run) for run in WALL.others], value)
    rows += rows_of(campaign.all_choosing_jobs(WALL, rows), value)
    return rows + rows_of(campaign.reporting_jobs(WALL, rows), value)


def test_the_report_compares_each_draw_at_its_better_number_of_updates():
    text = "\n".join(report.report(WALL, made_rows(), []))
    for price in wall_clock.PRICES:
        assert f"## A step costs: {price}" in text
    assert text.count("| no weights | uniform | mean over the tasks | 0.500 ") == 4
    assert text.count("| no weights | shuffled, no weights | mean over the tasks | 1.000 ") == 4
    assert text.count("| defaults | uniform | mean over the tasks | 0.250 ") == 4
    assert "so no test counts" not in text and "16 a step" in text


def test_nothing_is_shown_before_all_seeds_are_there():
    text = "\n".join(report.report(WALL, made_rows()[:-1], []))
    assert "no result is shown" in text and "Primary" not in text


def test_units_are_those_of_the_best_uniform_arm():
    values = {arm: np.full((10, len(WALL.tasks)), 8.0) for arm in WALL.arms}
    best = {"ReacherHard": {"uniform": "uniform, 4 a step", "no weights": "no weights, 1 a step"}}
    values["uniform, 4 a step"][:] = 4.0
    assert wall_clock.relative(WALL, values, best, "ReacherHard", "no weights").tolist() == [2.0] * 10
