"""The report of a comparison: the numbers of its table, its sentence, and its picture."""

import numpy as np
import pytest
from scipy import stats

from sb3_per.compare.report import BEST_RATE, LAST_FIFTH, SAME_TIME, WHOLE_RUN, Results, comparisons, draw, table, verdict
from sb3_per.compare.statistics import holm, mean_interval, paired_p
from sb3_per.compare.task import Arm

LAP = "scheme='lap'"
ARMS = [
    Arm("stock DQN", "stock", "dqn", "stock"),
    Arm("uniform twin", "twin", "per_dqn", "uniform"),
    Arm(LAP, "A", "per_dqn", "setting"),
    Arm(f"{LAP}, shuffled", "A shuffled", "per_dqn", "shuffled", control_for=LAP),
]

MORE = Arm("uniform twin, 4 times the updates", "twin x4", "per_dqn", "more", more_updates=4)


def results_of(stock=100.0, twin=100.0, setting=100.0, control=100.0, n_seeds=15, rates=(1.0,), arms=ARMS) -> Results:
    """Make results around one mean for each arm, equal at all five evaluations. A random policy scores 20."""
    rng = np.random.default_rng(0)
    curves = {}
    for arm in arms:
        mean = {"stock": stock, "uniform": twin, "setting": setting, "shuffled": control}[arm.kind]
        scores = mean + rng.permutation(np.linspace(-5, 5, n_seeds))
        curves[arm.name] = np.tile(scores[None, :, None], (len(rates), 1, 5))
    updates, spreads, seconds = (dict.fromkeys(curves, value) for value in (1_234.0, 0.5, 60.0))
    return Results(list(arms), curves, updates, np.array([19.0, 21.0]), list(rates), spreads, seconds)


def answer_of(results: Results) -> str:
    return verdict(results, comparisons(results))


def test_the_answer_is_one_of_four_sentences():
    assert answer_of(results_of(setting=120)) == f"Better than stock DQN (p < 0.05): {LAP}."
    assert answer_of(results_of(setting=80)) == f"Worse than stock DQN (p < 0.05): {LAP}."
    assert answer_of(results_of()) == "Cannot tell: 15 seeds show no clear difference from stock DQN."
    random_returns = np.array([15.0, 25.0])  # 35 is three standard deviations above their mean
    nothing = results_of(19, 19, 34, 19)._replace(random_returns=random_returns)
    assert answer_of(nothing).startswith("Nothing learned: no arm clearly beats a random policy.")
    assert answer_of(results_of(19, 19, 36, 19)._replace(random_returns=random_returns)).startswith("Better than stock DQN")


def test_the_answer_is_about_the_stock_class_on_the_whole():
    """Three seeds never decide. A gain over the twin is none over the stock class, where there is one."""
    assert answer_of(results_of(setting=1_000, n_seeds=3)).startswith("Cannot tell: 3 seeds ")
    only_over_the_twin = results_of(stock=101, setting=100, twin=80, control=80)
    assert answer_of(only_over_the_twin).startswith("Worse than stock DQN (p < 0.05): uniform twin")
    assert answer_of(results_of(stock=300, setting=150)).startswith("Worse than stock DQN")
    assert answer_of(results_of(setting=150, twin=130)) == f"Better than stock DQN (p < 0.05): uniform twin; {LAP}."
    assert answer_of(results_of(setting=120, arms=ARMS[1:])) == f"Better than uniform twin (p < 0.05): {LAP}."
    better_at_the_end = results_of()
    better_at_the_end.curves[LAP][..., :4] -= 50
    better_at_the_end.curves[LAP][..., 4] += 50
    assert answer_of(better_at_the_end).startswith("Cannot tell")


def test_endpoints_are_the_last_fifth_and_the_whole_run():
    results = results_of()
    results.curves[LAP][:] = results.curves["stock DQN"] + [0.0, 0.0, 0.0, 0.0, 10.0]
    found = {
        row.endpoint: row.differences for row in comparisons(results) if (row.arm.label, row.other.label) == ("A", "stock")
    }
    assert found.keys() == {LAST_FIFTH, WHOLE_RUN}
    assert found[LAST_FIFTH] == pytest.approx(10.0) and found[WHOLE_RUN] == pytest.approx(2.0)


def test_only_the_rate_of_the_task_is_tested():
    results = results_of(rates=(1 / 3, 1.0, 3.0))
    results.curves[LAP][2] += 40
    results.curves["stock DQN"][0] += 10
    rows = comparisons(results)
    (best,) = (row for row in rows if row.endpoint == BEST_RATE and (row.arm.label, row.other.label) == ("A", "stock"))
    assert best.differences.mean() == pytest.approx(30.0) and np.isnan(best.p)
    assert verdict(results, rows).startswith("Cannot tell")


def test_p_values_are_paired_and_corrected_for_all_tests_of_the_table():
    """The seeds differ by more than the arms."""
    results = results_of(rates=(1.0, 3.0))
    for name, curves in results.curves.items():
        curves *= 0.01
        curves += np.linspace(0, 500, 15)[None, :, None] + 100 + 0.2 * (name == LAP)
    tested = [row for row in comparisons(results) if row.endpoint != BEST_RATE]
    assert len(tested) == 4 * 2
    p_values = holm({i: paired_p(row.differences) for i, row in enumerate(tested)})
    assert [row.p for row in tested] == [p_values[i] for i in range(8)]
    assert tested[0].p == pytest.approx(8 * 2 / 2**15)


def timed_results(setting: float, more: float, seconds: float, random: float = 20.0) -> Results:
    """
    Make results with an arm of more updates, whose run takes these seconds and all others' 60. Its curves and those of the
    setting rise from the random policy to their last value.
    """
    results = results_of(arms=[*ARMS[:2], Arm(MORE.name, MORE.label, MORE.algo, "uniform"), *ARMS[2:]])
    arms = [MORE if arm.name == MORE.name else arm for arm in results.arms]
    curves = dict(results.curves)
    for name, last in ((LAP, setting), (MORE.name, more)):
        noise = np.random.default_rng(1).normal(size=15)[None, :, None]
        curves[name] = random + (last - random + noise) * np.arange(1, 6) / 5
    return results._replace(arms=arms, curves=curves, seconds={**results.seconds, MORE.name: seconds})


def test_curves_are_read_at_modelled_times():
    results = timed_results(100, 200, 150.0)
    for arm in results.arms:
        times = np.linspace(0.0, results.seconds[arm.name], 6)
        for seconds in (60.0, 42.0):
            expected = [
                np.interp(seconds * np.arange(1, 6) / 5, times, [20.0, *curve]) for curve in results.curves[arm.name][0]
            ]
            np.testing.assert_allclose(results.within(arm, seconds)[0], expected)
        np.testing.assert_array_equal(results.within(arm, results.seconds[arm.name]), results.curves[arm.name])


def test_at_the_same_time_the_shorter_run_counts_to_its_end():
    results = timed_results(100, 200, 120.0)
    found = {
        row.endpoint: row.differences for row in comparisons(results) if (row.arm.label, row.other.label) == ("A", "twin x4")
    }
    assert {LAST_FIFTH, WHOLE_RUN, *SAME_TIME} == found.keys()
    curves = {name: results.curves[name][0] for name in (LAP, MORE.name)}
    np.testing.assert_allclose(found[LAST_FIFTH], curves[LAP][:, -1] - curves[MORE.name][:, -1])
    halfway = (curves[MORE.name][:, 1] + curves[MORE.name][:, 2]) / 2
    np.testing.assert_allclose(found[SAME_TIME[0]], curves[LAP][:, -1] - halfway)


def test_one_sentence_is_about_the_same_steps_and_others_about_the_same_time():
    slow = answer_of(timed_results(setting=180, more=220, seconds=240.0)).splitlines()
    assert slow == [
        f"At the same steps: Better than stock DQN (p < 0.05): {MORE.name}; {LAP}.",
        f"At the same time: Better than stock DQN (p < 0.05): {LAP}.",
        f"At the same time: Better than {MORE.name} (p < 0.05): {LAP}.",
    ]
    fast = answer_of(timed_results(setting=120, more=600, seconds=66.0)).splitlines()
    assert fast[-1] == f"At the same time: Worse than {MORE.name} (p < 0.05): {LAP}."
    alike = answer_of(timed_results(setting=120, more=220, seconds=120.0)).splitlines()
    assert alike[-1] == f"At the same time: Cannot tell: 15 seeds show no clear difference from {MORE.name}."


def test_a_run_that_is_too_slow_for_the_same_time_is_named():
    lines = answer_of(timed_results(setting=120, more=140, seconds=301.0)).splitlines()
    early = f"ends before the first evaluation of {MORE.name}. Lower --more-updates."
    assert [line for line in lines if "no answer" in line] == [
        f"At the same time: no answer: {name} {early}" for name in ("stock DQN", LAP)
    ]
    rows = comparisons(timed_results(setting=120, more=140, seconds=301.0))
    assert {(row.arm.label, row.other.label) for row in rows if row.endpoint in SAME_TIME} == {("A", "stock")}


def test_without_more_updates_nothing_is_compared_at_the_same_time():
    assert not [row for row in comparisons(results_of()) if row.endpoint in SAME_TIME]


def test_the_table_has_all_numbers_and_fits_a_narrow_page():
    results = results_of(stock=1_100, setting=1_120, rates=(1 / 3, 1.0, 3.0))
    rows = comparisons(results)
    lines = table(results, rows).splitlines()
    assert max(map(len, lines)) <= 72
    assert lines[0] == f"A: {LAP}"
    cells = [line.split() for line in lines]
    assert ["random", "policy", "20"] in cells and ["stock", "DQN", "1,100", "1,100", "1,100", "1,234", "60"] in cells
    for name in ("A - stock", "A - twin", "A - A shuffled", "twin - stock"):
        assert sum(line.startswith(f"{name}  ") for line in lines) == 3
    of_stock = next(line for line in lines if line.startswith("A - stock"))
    low, high = mean_interval(rows[0].differences)[1:]
    assert of_stock.split() == ["A", "-", "stock", "+20", f"[{low:+.3g},", f"{high:+.3g}]", "15/15", "<", "0.001"]


def test_the_picture_has_all_arms_and_95_percent_bands(tmp_path):
    """The names of settings may be long. Nothing is cut."""
    long = "scheme=LAP(alpha=0.4, kappa=0.1), recency=0.99, initial_priority='td_error', actor_batch='uniform'"
    control = Arm(f"{long}, shuffled", "A shuffled", "per_dqn", "shuffled", control_for=long)
    arms = [*ARMS[:2], Arm(long, "A", "per_dqn", "setting"), control]
    results = results_of(setting=120, rates=(1 / 3, 1.0, 3.0), arms=arms)
    figure = draw(results, 1_000, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    figure.draw_without_rendering()
    for part in (figure.legends[0], *figure.axes, *(axes.title for axes in figure.axes)):
        box = part.get_window_extent()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
    names = [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()]
    assert names == [*results.curves, "random policy"]
    axes = figure.axes[1]
    assert len({(line.get_linestyle(), line.get_marker()) for line in axes.lines[:4]}) == 4
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    interval = stats.ttest_1samp(results.curves["stock DQN"][1, :, 0], 0.0).confidence_interval(0.95)
    assert np.abs(band - interval.low).min() < 1e-6 and np.abs(band - interval.high).min() < 1e-6
