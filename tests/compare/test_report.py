"""The report of a comparison: every kind of verdict, and the table."""

import numpy as np
import pytest

from sb3_per.compare.report import Results, comparisons, draw, table, verdict

TWIN, SETTING, CONTROL = "uniform twin", "scheme='lap'", "scheme='lap', shuffled"
JUDGED: dict[str, str | None] = {SETTING: CONTROL}
SPREAD = np.linspace(-5, 5, 10)


def results_of(setting: float, control: float, twin: float = 100.0, spread: np.ndarray = SPREAD, rates: int = 1) -> Results:
    """Make results around one mean for each arm, equal at all evaluations. A random policy scores 20."""
    means = {"stock DQN": twin, TWIN: twin, SETTING: setting, CONTROL: control}
    curves = {arm: np.tile((mean + spread)[None, :, None], (rates, 1, 5)) for arm, mean in means.items()}
    return Results(curves, np.array([19.0, 21.0]), [1.0, 3.0][:rates])


def said_of(results: Results) -> str:
    rows = comparisons(results, "stock DQN", TWIN, JUDGED)
    return verdict(results, rows, TWIN, JUDGED)


@pytest.mark.parametrize(
    ("setting", "control", "begins", "ends"),
    [
        (120, 100, "Better: ", "so the priorities are the reason."),
        (120, 120, "Better: ", "so the priorities need not be the reason."),
        (80, 100, "Worse: ", "at the task's rate."),
        (101, 100, "Cannot tell: ", "at the task's rate."),
    ],
)
def test_the_verdict_follows_from_the_interval(setting, control, begins, ends):
    said = said_of(results_of(setting, control))
    assert said.startswith(begins + SETTING) and said.endswith(ends)
    assert "\n" not in said


def test_no_arm_wins_if_nothing_is_learned():
    """This holds for any difference between the arms."""
    said = said_of(results_of(22.0, 18.0, twin=18.0, spread=SPREAD / 100))
    assert said.startswith("Nothing learned: ") and "(20)" in said and "(best: 22)" in said


def test_few_seeds_give_weak_evidence_and_no_verdict():
    said = said_of(results_of(150, 100, spread=SPREAD[:3]))
    assert said.startswith("Cannot tell: ") and said.endswith("(weak evidence: 3 seeds).")


def test_opposite_results_at_two_endpoints_give_no_winner():
    """An arm is better at the task's rate and worse at the best rate."""
    results = results_of(120, 100, rates=2)
    results.curves[TWIN][1] += 100
    results.curves[CONTROL][1] += 100
    said = said_of(results)
    assert said.startswith("Cannot tell: ") and "better than uniform replay at the task's rate and worse at each arm's" in said


def test_several_settings_share_a_sentence():
    results = results_of(120, 100)
    results.curves["defaults"] = results.curves[TWIN] - 30
    judged = {SETTING: CONTROL, "defaults": None}
    rows = comparisons(results, None, TWIN, judged)
    said = verdict(results, rows, TWIN, judged)
    assert said.startswith("Better: ") and "; worse: defaults" in said
    assert len(rows) == 3


def test_the_table_has_all_comparisons_at_both_endpoints():
    results = results_of(120, 100, rates=2)
    rows = comparisons(results, "stock DQN", TWIN, JUDGED)
    lines = table(rows).splitlines()
    assert len(lines) == 1 + 2 * 3
    assert sum("the task's rate" in line for line in lines) == sum("each arm's best rate" in line for line in lines) == 3
    first = lines[1]
    assert first.startswith(f"{SETTING} - {TWIN}") and "  10    120     100    20 [" in first and "100%" in first
    # The stock class is listed, but not tested.
    assert all((row.p is None) == (row.other == "stock DQN") for row in rows)
    assert {len(row.ours) for row in rows if "best" in row.endpoint} == {5}


def test_p_values_are_corrected_for_all_comparisons_of_the_table():
    results = results_of(120, 100)
    one = comparisons(results, None, TWIN, {SETTING: None})[0].p
    two = comparisons(results, None, TWIN, JUDGED)[0].p
    assert one is not None and two == pytest.approx(2 * one)


def test_the_score_is_the_mean_of_the_last_fifth_of_evaluations():
    curves = {"arm": np.arange(10.0).reshape(1, 1, 10)}
    assert Results(curves, np.zeros(1), [1.0]).scores["arm"].tolist() == [[8.5]]


def test_the_figure_is_written(tmp_path):
    results = results_of(120, 100, rates=2)
    roles = {"stock DQN": "stock", TWIN: "uniform", SETTING: "LAP", CONTROL: SETTING}
    draw(results, roles, 1_000, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
