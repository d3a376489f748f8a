"""The report of a comparison: it says whether to change the script and to what, with stock among the candidates."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from sb3_per.compare.report import Names, Results, comparisons, draw, pairs_of, table, verdict
from sb3_per.compare.statistics import holm, paired_p

STOCK, TWIN, SETTING, CONTROL = "stock DQN", "uniform twin", "scheme='lap'", "scheme='lap', shuffled"
NAMES = Names(STOCK, TWIN, {SETTING: CONTROL}, "PERDQN")


def results_of(
    setting: float,
    control: float,
    twin: float = 100.0,
    stock: float = 100.0,
    n_seeds: int = 10,
    rates: tuple[float, ...] = (1.0,),
) -> Results:
    """Make results around one mean for each arm, equal at all evaluations. A random policy scores 20."""
    rng = np.random.default_rng(0)
    means = {STOCK: stock, TWIN: twin, SETTING: setting, CONTROL: control}
    curves = {
        arm: np.tile((mean + rng.permutation(np.linspace(-5, 5, n_seeds)))[None, :, None], (len(rates), 1, 5))
        for arm, mean in means.items()
    }
    return Results(curves, np.array([19.0, 21.0]), list(rates))


def said_of(results: Results, names: Names = NAMES, **arguments: object) -> str:
    said = verdict(results, comparisons(results, names), names, **arguments)  # type: ignore[arg-type]
    assert "\n" not in said and said.endswith(".") and not said.endswith("..")
    return said


@pytest.mark.parametrize(
    ("setting", "control", "begins", "ends"),
    [
        (
            120,
            100,
            "Better: change to PERDQN with scheme='lap'. Against stock DQN: +20 [",
            "so the priorities are the reason.",
        ),
        (
            120,
            120,
            "Better: change to PERDQN with scheme='lap'. Against stock DQN: +20 [",
            "so the priorities need not be the reason.",
        ),
        (80, 100, "Worse: keep stock DQN. scheme='lap': worse than stock DQN, -20 [", "."),
        (101, 100, "Cannot tell, so keep stock DQN: no gain is shown with 10 seeds. scheme='lap': against stock DQN, ", "."),
    ],
)
def test_the_answer_says_whether_to_change_the_script_and_to_what(setting, control, begins, ends):
    said = said_of(results_of(setting, control))
    assert said.startswith(begins) and said.endswith(ends)


def test_stock_stays_if_it_is_best():
    """The setting beats the twin, but both lose to stock."""
    said = said_of(results_of(setting=150, control=100, twin=100, stock=300))
    assert said.startswith("Worse: keep stock DQN. scheme='lap': worse than stock DQN, -150 [")
    assert "better than the same class with uniform draws, +50 [" in said


def test_a_gain_over_the_twin_alone_is_no_reason_to_change():
    said = said_of(results_of(setting=100, control=80, twin=80, stock=101))
    assert said.startswith("Cannot tell, so keep stock DQN") and "better than the same class with uniform draws" in said


def test_the_twin_is_a_candidate():
    said = said_of(results_of(setting=100, control=100, twin=150, stock=100))
    assert (
        said.startswith("Better: change to PERDQN with scheme='uniform'. Against stock DQN: +50 [")
        and "priorities are not the reason" in said
    )


def test_of_several_better_arms_the_best_is_recommended():
    said = said_of(results_of(setting=150, control=100, twin=130, stock=100))
    assert said.startswith("Better: change to PERDQN with scheme='lap'. Against stock DQN: +50 [")
    assert said.endswith("Also better than stock DQN as it runs today: change to PERDQN with scheme='uniform'.")


def test_another_learning_rate_of_stock_is_a_candidate():
    results = results_of(100, 100, rates=(1.0, 3.0))
    for curves in results.curves.values():
        curves[1] += 40
    assert said_of(results).startswith("Better: keep stock DQN, with 3 x the learning rate. Its gain: +40 [")


def test_a_setting_may_need_another_learning_rate():
    results = results_of(80, 80, rates=(1.0, 3.0))
    results.curves[SETTING][1] += 60
    said = said_of(results)
    # It is worse at the rate of the task.
    assert said.startswith("Cannot tell") and "worse than stock DQN" in said and "better than stock DQN" in said
    results.curves[SETTING][0] += 20
    said = said_of(results)
    assert said.startswith("Better: change to PERDQN with scheme='lap' and 3 x the learning rate. ")
    assert "at each arm's best learning rate" in said


def test_no_arm_wins_if_nothing_is_learned():
    """This holds for any difference between the arms."""
    said = said_of(results_of(24.0, 18.0, twin=18.0, stock=18.0)._replace(of_random=np.array([10.0, 30.0])))
    assert said.startswith("Nothing learned: ") and "(20)" in said and "(best: 24)" in said
    assert "beats stock" not in said


@pytest.mark.parametrize(
    "scores, has", [([-110.0, -95.0, -108.0], False), ([-50.0, -40.0, -108.0], True), ([-50.0, -105.0, -108.0], False)]
)
def test_a_task_is_learned_if_half_of_the_runs_of_an_arm_are_clearly_above_a_random_policy(scores, has):
    results = results_of(-100, -100, -100, -100, n_seeds=3)
    results.curves[SETTING] = np.tile(np.array(scores)[None, :, None], (1, 1, 5))
    results = results._replace(of_random=np.array([-110.0, -100.0, -90.0]))  # standard deviation 8.2
    assert said_of(results).startswith("Nothing learned: ") != has


def test_a_first_impression_is_an_effect_with_its_interval():
    for setting, direction in ((150, "looks better than"), (50, "looks worse than"), (101, "cannot be told apart from")):
        results = results_of(setting, 100, n_seeds=3)
        results.curves[SETTING] += np.array([-5.0, 0.0, 5.0])[:, None]
        said = said_of(results, impression="For a verdict, leave out --quick.")
        assert said.startswith(f"First impression (3 seeds), no verdict: PERDQN with scheme='lap' {direction} stock DQN, ")
        assert "[" in said and said.endswith("leave out --quick.")
        assert "Better" not in said and "Worse" not in said


def test_uniform_draws_are_not_said_to_be_a_gain_of_priorities():
    said = said_of(results_of(120, 100), uniform=[SETTING])
    assert "It drew uniformly in all runs, so priorities are not the reason." in said
    assert "it drew uniformly in all runs" in said_of(results_of(101, 100), uniform=[SETTING])


def test_several_settings_share_an_answer():
    results = results_of(120, 100)
    results.curves["defaults"] = results.curves[STOCK] - 30
    names = NAMES._replace(judged={SETTING: CONTROL, "defaults": None})
    assert said_of(results, names).startswith("Better: change to PERDQN with scheme='lap'")
    results.curves[SETTING] = results.curves[STOCK][:, ::-1]
    said = said_of(results, names)
    assert said.startswith("Cannot tell") and "defaults: worse than stock DQN, -30 [" in said


def test_without_a_stock_class_the_twin_is_the_reference():
    results = results_of(120, 100)
    del results.curves[STOCK]
    names = NAMES._replace(stock=None)
    assert "+20 [" in said_of(results, names) and "Against uniform twin: " in said_of(results, names)
    results.curves[SETTING] -= 40
    assert said_of(results, names).startswith("Worse: keep uniform draws. scheme='lap': worse than uniform draws, -20 [")


def test_runs_with_the_same_seed_are_a_pair():
    """The seeds differ by more than the arms."""
    results = results_of(100, 100)
    seeds = np.linspace(0, 500, 10)[None, :, None]
    for arm, gain in ((STOCK, 0), (TWIN, 0), (SETTING, 20), (CONTROL, 0)):
        results.curves[arm] = results.curves[arm] * 0.01 + 100 + seeds + gain
    assert said_of(results).startswith("Better: change to PERDQN with scheme='lap'. Against stock DQN: +20 [")


def test_the_table_has_all_comparisons_and_fits_a_narrow_page():
    results = results_of(120, 100, rates=(1 / 3, 1.0, 3.0))
    rows = comparisons(results, NAMES)
    assert [row[:4] for row in rows] == pairs_of(NAMES, results.rates)
    assert len(rows) == 2 * 4 + 2
    shown = table(results, rows, NAMES)
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 60
    assert lines[0] == "A: scheme='lap'"
    for name in ("A - stock", "A - twin", "A - shuffled", "twin - stock"):
        assert sum(line.startswith(f"{name} ") for line in lines) == 2
    assert sum(line.startswith("stock x ") for line in lines) == 2
    (first,) = (line for line in lines[: lines.index("At each arm's best learning rate:")] if line.startswith("A - stock"))
    assert "+20 [" in first and "10/10" in first
    assert "  p" in shown and "  p\n" not in table(results, rows, NAMES, tested=False)


def test_numbers_look_alike_everywhere():
    results = results_of(-1_120, -1_100, twin=-1_100, stock=-1_100)
    results = results._replace(of_random=np.array([-1_238.4, -1_237.6]))
    text = table(results, comparisons(results, NAMES), NAMES) + said_of(
        results_of(-1_238, -1_238, -1_238, -1_238)._replace(of_random=np.array([-1_238.0, -1_237.9]))
    )
    assert text.count("-1,238") == 3 and "-1238" not in text and "-1.2e" not in text


def test_p_values_are_corrected_for_all_comparisons_of_the_table():
    results = results_of(120, 100)
    rows = comparisons(results, NAMES)
    p_values = holm({i: paired_p((row.ours - row.theirs)[0]) for i, row in enumerate(rows)})
    assert [row.p for row in rows] == [p_values[i] for i in range(len(rows))]
    assert len(rows) == 4 and rows[0].p == pytest.approx(4 * 2 / 1024)


def test_the_score_is_the_mean_of_the_last_fifth_of_evaluations():
    curves = {"arm": np.arange(10.0).reshape(1, 1, 10)}
    assert Results(curves, np.zeros(1), [1.0]).scores["arm"].tolist() == [[8.5]]


def test_nothing_in_the_figure_is_cut(tmp_path, monkeypatch):
    """The names of settings may be long."""
    figures: list[Figure] = []
    savefig = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, path: (figures.append(self), savefig(self, path)))
    long = "scheme=LAP(alpha=0.4, kappa=0.1), uniform_fraction=0.1, initial_priority='mean', max_priority_interval=250"
    results = results_of(120, 100, rates=(1 / 3, 1.0, 3.0))
    of_long = {
        long if arm == SETTING else f"{long}, shuffled" if arm == CONTROL else arm: c for arm, c in results.curves.items()
    }
    roles = {STOCK: "stock", TWIN: "uniform", long: "LAP"}
    draw(results._replace(curves=of_long), roles, {f"{long}, shuffled": long}, 1_000, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    (figure,) = figures
    figure.draw_without_rendering()
    parts = [figure.legends[0], *(axes for axes in figure.axes), *(axes.title for axes in figure.axes)]
    for part in parts:
        box = part.get_window_extent()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1 and figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
    assert [text.get_text().replace("\n", " ") for text in figure.legends[0].get_texts()] == [*of_long, "random policy"]
    assert [axes.get_title() for axes in figure.axes] == [
        "0.33 x the learning rate",
        "the task's learning rate",
        "3 x the learning rate",
    ]


def test_bands_of_the_figure_are_95_percent_intervals(tmp_path, monkeypatch):
    """The axis says so, and the bands end where Student's intervals of the means do."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path: figures.append(self))
    results, roles = results_of(120, 100), {STOCK: "stock", TWIN: "uniform", SETTING: "LAP"}
    draw(results, roles, {CONTROL: SETTING}, 1_000, tmp_path / "curves.png")
    (axes,) = figures[0].axes
    assert "bands: 95% intervals" in axes.get_xlabel()
    assert len({(line.get_linestyle(), line.get_marker()) for line in axes.lines[:4]}) == 4
    of_runs = results.curves[STOCK][0]
    band = axes.collections[0].get_paths()[0].vertices[:, 1]
    for evaluation in of_runs.T:
        interval = stats.ttest_1samp(evaluation, 0.0).confidence_interval(0.95)
        assert np.abs(band - interval.low).min() < 1e-6 and np.abs(band - interval.high).min() < 1e-6


def test_an_arm_may_have_the_name_of_a_look(tmp_path):
    """Without --setting, the arm is called "defaults", and so is its look."""
    results = results_of(120, 100)
    curves = {arm.replace(SETTING, "defaults"): values for arm, values in results.curves.items()}
    roles = {STOCK: "stock", TWIN: "uniform", "defaults": "defaults"}
    draw(results._replace(curves=curves), roles, {"defaults, shuffled": "defaults"}, 1_000, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").is_file()
