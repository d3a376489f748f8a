"""The campaigns of docs/evidence: suites compare like with like, runs are reproducible, and reports follow from the rows."""

import itertools
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.text import Text

from sb3_per.compare import campaign
from study import __main__ as evidence
from study import campaign as campaigns
from study import environments, figures, learning, report, suites, summary, tables

NAMES = list(suites.SUITES)
OF_AGENTS = [name for name in NAMES if name.startswith("memory-")]  # the others compare settings
ROOT = campaigns.ROOT
DATA, RESULTS = ROOT / "data", ROOT / "results"


# ---- suites


@pytest.mark.parametrize("name", [name for name in OF_AGENTS if not name.endswith("-again")])
def test_recurrent_agents_are_compared_with_agents_of_the_same_kind(name):
    """The uniform twin and the arm without stored states differ from the default in this one setting."""
    suite = suites.SUITES[name]
    assert suite.seeds >= 5 and suite.endpoint
    recurrent = {v: made for v, made in suite.variants.items() if made.algorithm.startswith("PERRecurrent")}
    for made in recurrent.values():
        assert (made.policy, made.n_frames, made.normalize) == ("MlpLstmPolicy", 1, False)
        others = [
            {k: v for k, v in m.settings.items() if k not in ("replay_buffer_kwargs", "burn_in")} for m in recurrent.values()
        ]
        assert all(other == others[0] for other in others)
    settings = [made.settings.get("replay_buffer_kwargs", {}) for made in recurrent.values()]
    assert {} in settings and dict(scheme="uniform") in settings
    if "RecurrentPPO" in suite.variants:
        memoryless = [made for v, made in suite.variants.items() if v not in recurrent and v != "RecurrentPPO"]
        assert [made.n_frames for made in memoryless] == [1, 4]
        assert memoryless[0].settings == memoryless[1].settings
        assert {made.algorithm.replace("PER", "PERRecurrent") for made in memoryless} == {
            made.algorithm for made in recurrent.values()
        }


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OF_AGENTS])
def test_variants_differ_only_in_the_class_and_in_settings_that_are_compared(name):
    variants = suites.SUITES[name].variants.values()
    stock = next(iter(variants)).algorithm
    assert {made.algorithm for made in variants} == {stock, f"PER{stock}"}
    compared = {"replay_buffer_kwargs", "double_q", "n_steps", "learning_rate"}
    assert all(made.settings.keys() <= (compared if made.algorithm != stock else {"learning_rate"}) for made in variants)


@pytest.mark.parametrize("name", [name for name in NAMES if len(suites.SUITES[name].rates) > 1])
def test_every_arm_has_the_same_learning_rates(name):
    suite, rates = suites.SUITES[name], {}
    for variant, made in suite.variants.items():
        rates.setdefault(suites.arm_of(variant), []).append(made.settings["learning_rate"])
    base = next(iter(rates.values()))[suite.rates.index(1.0)]
    assert all(of_arm == pytest.approx([base * rate for rate in suite.rates]) for of_arm in rates.values())


def test_a_run_with_other_settings_has_another_fingerprint():
    suite = suites.SUITES["pairs"]
    changed = [
        replace(suite, steps=7),
        replace(suite, n_envs=7),
        replace(suite, settings={**suite.settings, "batch_size": 7}),
        replace(suite, variants={"SAC": suites.Variant("SAC", dict(gamma=0.7))}),
    ]
    assert len({learning.fingerprint(other, "SAC") for other in [suite, *changed]}) == 5
    assert learning.fingerprint(replace(suite, seeds=7), "SAC") == learning.fingerprint(suite, "SAC")


@pytest.mark.parametrize(
    ("name", "other", "new"),
    [("bits-confirmation", "bits-rates", {"shuffled, defaults"}), ("memory-cartpole-again", "memory-cartpole", set())],
)
def test_a_confirmation_repeats_runs_on_new_seeds(name, other, new):
    """Even and odd seeds are the two halves, as in the suite that is confirmed."""
    suite, original = suites.SUITES[name], suites.SUITES[other]
    seeds = learning.CAMPAIGNS[name].reporting
    assert set(seeds).isdisjoint(learning.CAMPAIGNS[other].reporting) and suite.first_seed == seeds[0] and seeds[0] % 2 == 0
    for variant in suite.variants.keys() & original.variants.keys():
        assert learning.fingerprint(suite, variant) == learning.fingerprint(original, variant)
    assert {suites.arm_of(variant) for variant in suite.variants.keys() - original.variants.keys()} == new


@pytest.mark.parametrize(
    ("name", "arms"),
    [
        ("bits-rates", ["LAP", "no weights", "epsilon 0.01, mean, eta 0.25"]),
        ("bits-confirmation", ["LAP", "no weights", "epsilon 0.01, mean, eta 0.25", "defaults"]),
        ("chain-rates", ["defaults"]),
        ("sparse", ["PERDQN"]),
    ],
)
def test_every_candidate_has_a_shuffled_control(name, arms):
    """The control has the same settings, and shuffled priorities."""
    suite = suites.SUITES[name]
    by_name = {suites.arm_of(arm): arm for arm in suite.variants if arm.endswith(" @ 1") or len(suite.rates) == 1}
    kwargs = {arm: suite.variants[variant].settings.get("replay_buffer_kwargs", {}) for arm, variant in by_name.items()}
    kwargs["no weights"] = suites.NO_WEIGHTS
    assert [arm for arm in kwargs if arm.startswith("shuffled")] == [f"shuffled, {arm}" for arm in arms]
    for arm in arms:
        scheme = kwargs[arm].get("scheme", "proportional")
        assert kwargs[f"shuffled, {arm}"] == {**kwargs[arm], "scheme": f"shuffled {scheme}"}
        assert learning.with_control(kwargs[arm]) == kwargs[arm]
        assert type(learning.with_control(kwargs[f"shuffled, {arm}"])["scheme"]).__name__ == "Shuffled"


def test_the_whole_name_of_a_suite_selects_only_that_suite():
    assert campaigns.selected(NAMES, "pairs") == ["pairs"]
    assert set(campaigns.selected(NAMES, "bits-")) == {"bits-rates", "bits-confirmation"}
    assert campaigns.selected(NAMES, "") == NAMES
    with pytest.raises(SystemExit, match="'nothing' is none of discrete"):
        evidence.main(["--only", "nothing"])


def short(name: str, **changes) -> suites.Suite:
    """Shorten a suite to a few steps."""
    suite = suites.SUITES[name]
    settings = {**suite.settings, "learning_starts": 20, "buffer_size": 500, "batch_size": 16}
    variants = suite.variants
    if name in OF_AGENTS:  # whose settings are those of the variants
        settings, small = suite.settings, dict(learning_starts=60, buffer_size=500, batch_size=4)
        variants = {v: replace(m, settings={**m.settings, **small}) for v, m in variants.items() if "PPO" not in m.algorithm}
    return replace(suite, steps=120, settings=settings, variants=variants, **{"n_evaluations": 6, "n_episodes": 2, **changes})


# Settings that some arms used, and that the package no longer has.
REMOVED = {"uniform_fraction", "weight_normalization"}
# Suites that differ from another suite only in numbers or in the environment.
TWIN = "pairs-rates|-confirmation|memory-(cartpole|pendulum)|continuous"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if re.search(TWIN, name) else name for name in NAMES]
)
@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.filterwarnings("ignore:.*render_mode='rgb_array' that is not in the possible render_modes")
def test_evaluations_do_not_change_training(name, which):
    """A run with half of the evaluations gives the same scores at these steps, which also shows that runs are reproducible."""
    suite = short(name, solved=None)
    settings_of = {name: made.settings.get("replay_buffer_kwargs", {}) for name, made in suite.variants.items()}
    runnable = [name for name, settings in settings_of.items() if not REMOVED & settings.keys()]
    environment, variant = suite.environments[0], runnable[which]
    before = learning.fingerprint(suite, variant)
    often = learning.train(suite, environment, variant, 1)
    assert learning.fingerprint(suite, variant) == before
    assert list(often) == ["20", "40", "60", "80", "100", "120"]
    seldom = learning.train(replace(suite, n_evaluations=3), environment, variant, 1)
    assert seldom == {step: often[step] for step in ("40", "80", "120")}


def test_a_run_ends_when_it_is_solved():
    suite = short("sparse", solved=-1e9)
    returns = learning.train(suite, suite.environments[0], "DQN", 0)
    assert [value == "" for value in returns.values()] == [False] + 5 * [True]


# ---- report


def synthetic(seeds: int = 6, **changes) -> tuple:
    """Make a campaign, rows as it writes them, and the returns in them. The last variant runs only in environment B."""
    suite = suites.SUITES["continuous"]
    variants = {**suite.variants, "PERTD3, PAL": replace(suite.variants["PERTD3, PAL"], environments=("B",))}
    suite = replace(suite, **{"environments": ("A", "B"), "variants": variants, "seeds": seeds, "n_evaluations": 5, **changes})
    rng = np.random.default_rng(0)
    returns = {v: rng.normal(100 + 10 * i, 5, (seeds, len(suite.environments), 5)) for i, v in enumerate(suite.variants)}
    if len(suite.environments) > 1:
        returns["PERTD3, PAL"][:, 0] = np.nan
    return learning.campaign_of("name", suite), rows_of(suite, returns), returns


def rows_of(suite, curves) -> list[dict[str, str]]:
    """Make the rows of a suite from curves of shape (runs, tasks, evaluations)."""
    made = learning.campaign_of("name", suite)
    rows = []
    for name, (task, arm, _, _, seed) in campaigns.reporting_jobs(made, []):
        values = list(map(float, curves[arm][seed - suite.first_seed, made.tasks.index(task)]))
        if suite.solved is not None:  # a run ends when it is solved
            ends = next((i for i, value in enumerate(values) if value >= suite.solved), len(values))
            values[ends + 1 :] = [""] * len(values[ends + 1 :])
        columns = dict(zip(learning.evaluation_steps(suite), values, strict=True))
        rows.append({str(key): str(value) for key, value in {**name, **columns}.items()})
    return rows


def write_rows(path, rows) -> None:
    with path.open("w", newline="") as file:
        writer = campaign.csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_scores_are_those_of_the_rows_with_the_settings_of_the_suite():
    """The score is the mean of the last fifth of the evaluations, here of one in five."""
    made, rows, returns = synthetic()
    assert len(rows) == 6 * (2 * 4 - 1)
    for arm, values in report.values_of(made, rows, made.score).items():
        np.testing.assert_array_equal(values, returns[arm][..., -1])
    for changed in (rows[1:], [{**rows[0], "settings": "other"}, *rows[1:]]):
        words, is_complete = report.progress(made, changed)
        assert words.startswith("41 of 42 reporting runs are there.") and not is_complete


def test_seeds_begin_with_the_first_seed_of_the_suite():
    made, rows, returns = synthetic(first_seed=40)
    np.testing.assert_array_equal(report.values_of(made, rows, made.score)["TD3"], returns["TD3"][..., -1])
    assert {row["seed"] for row in rows} == {str(seed) for seed in range(40, 46)}
    assert report.progress(made, rows)[1] and not report.progress(synthetic()[0], rows)[1]


def test_score_is_the_mean_of_the_last_fifth():
    row = {str(step): str(float(step)) for step in range(20, 0, -1)}
    assert campaigns.mean_of_last_fifth(row) == (17 + 18 + 19 + 20) / 4
    assert campaigns.mean_of_all(row) == 10.5 and campaigns.last(row) == 20


def test_interquartile_mean_and_interval():
    """Compare with NumPy: the mean of the middle half, and percentiles of resampled runs."""
    rng = np.random.default_rng(1)
    scores = rng.exponential(size=(12, 1))
    figure, low, high = tables.iqm({"a": scores})["a"][:, 0]
    assert figure == pytest.approx(np.sort(scores[:, 0])[3:-3].mean())
    resampled = np.sort(scores[rng.integers(12, size=(20_000, 12)), 0], axis=1)[:, 3:-3].mean(axis=1)
    assert [low, high] == pytest.approx(np.percentile(resampled, [2.5, 97.5]), rel=0.05)


def test_probability_of_improvement_counts_pairs():
    """A draw counts as half."""
    rng = np.random.default_rng(2)
    scores = {v: rng.integers(6, size=(7, 2)).astype(float) for v in ("stock", "other")}
    pairs = [
        [(x > y) + 0.5 * (x == y) for x in scores["other"][:, task] for y in scores["stock"][:, task]] for task in range(2)
    ]
    figure, low, high = tables.improvement({"a": (scores["other"], scores["stock"])})["a"][:, 0]
    assert figure == pytest.approx(np.mean(pairs))
    assert 0 <= low <= figure <= high <= 1


@pytest.mark.parametrize(("n_seeds", "is_paired"), [(9, False), (10, True)])
def test_arms_are_tested_by_seed_from_ten_seeds_on(n_seeds, is_paired):
    """A small gain of every seed among large differences between seeds is seen only in pairs. The other p stands beside it."""
    of_seed = 100.0 * np.arange(n_seeds)[:, None]
    pair = (of_seed + 1, of_seed)
    assert (tables.p_of(*pair) < 0.05) == is_paired
    (text,) = tables.p_cells({"a": pair}).values()
    assert ("(" in text) == is_paired
    suite = replace(suites.SUITES["pairs"], seeds=n_seeds, variants=dict.fromkeys(("b", "a"), suites.Variant("SAC")))
    made = replace(learning.campaign_of("name", suite), tasks=("one",), other_scores={})
    lines = report.tests(made, "Tests", made.primary, dict(zip("ab", pair, strict=True)))
    assert ("paired" == lines[0].split(", ")[2]) == ("| 1.0 |" in lines[4]) == ("difference" in lines[2]) == is_paired


def test_a_pair_is_resampled_together():
    values = np.array([[100.0, 1.0], [200.0, 2.0], [300.0, 3.0]])
    assert tables.with_interval(values, lambda pair: pair[:, 0].mean() / pair[:, 1].mean()) == pytest.approx([100.0] * 3)
    assert tables.with_interval(values[:, 0])[0] == 200.0


def test_steps_until_the_goal_is_reached():
    """The first evaluation with at least this return counts, and a run without one counts with all its steps."""
    values = {"10": "1", "20": "5", "30": "2"}
    assert [campaigns.steps_until(level, values) for level in (0, 4, 5, 6)] == [10, 20, 20, 30]
    assert campaigns.steps_until(5, {"10": "1", "20": "5", "30": ""}) == 20  # a run ends when it is solved


@pytest.mark.parametrize("solved", [None, 105.0])
def test_the_page_has_the_scores_of_all_arms_and_a_picture(out, solved, monkeypatch):
    monkeypatch.setattr(tables, "SAMPLES", 50)
    made, rows, returns = synthetic(solved=solved, **({"environments": ("B",)} if solved else {}))
    write_rows(out / "data" / "name.csv", rows)
    report.write(made, out)
    text = (out / "results" / "name.md").read_text()
    middle = np.sort(returns["TD3"][:, 0, -1])[1:-1].mean()
    assert solved or f"| TD3 | {middle:.0f} [" in text
    assert solved or "| PERTD3, PAL |  |" in text  # in environment A it does not run
    n_stopped = (returns["TD3"][:, 0] < 105.0).all(axis=1).sum()
    (row,) = [line for line in text.splitlines() if line.startswith("| TD3 |")] if solved else [""]
    assert not solved or row.endswith(f"({n_stopped}) |")
    assert (out / "results" / "name.png").read_bytes().startswith(b"\x89PNG")


def test_a_campaign_without_runs_has_no_result(out):
    report.write(learning.CAMPAIGNS["pairs"], out)
    assert "no result is shown" in (out / "results" / "pairs.md").read_text()
    assert not (out / "results" / "pairs.png").exists()


def test_the_summary_has_only_complete_suites(out, monkeypatch):
    """Of two suites with the same task, the later one counts. A suite counts once its last run is there."""
    monkeypatch.setattr(tables, "SAMPLES", 50)
    settings = {
        "uniform": dict(scheme="uniform"),
        "defaults": {},
        "LAP": dict(scheme="lap", kappa=0.3),
        "other": dict(scheme="rank"),
    }
    variants = {
        "SAC": suites.Variant("SAC"),
        **{name: suites.Variant("PERSAC", dict(replay_buffer_kwargs=each)) for name, each in settings.items()},
    }
    rates = (1 / 3, 1.0, 3.0)
    plain = replace(suites.SUITES["pairs"], variants=variants, seeds=6, n_evaluations=5)
    at_rates = replace(plain, variants=suites.at_rates(variants, 1e-3, rates), rates=rates)
    made = {"plain": plain, "rates": at_rates, "longer": replace(plain, steps=2 * plain.steps)}
    monkeypatch.setattr(summary, "SUITES", made)
    monkeypatch.setattr(summary, "CAMPAIGNS", {name: learning.campaign_of(name, suite) for name, suite in made.items()})
    rng = np.random.default_rng(0)
    curves = {name: rng.normal(size=(6, 3, 5)) + 9 for name in variants}
    curves["LAP"][:, 0] += 100  # at the first rate
    for name in ("plain", "rates"):
        write_rows(out / "data" / f"{name}.csv", rows_of(made[name], curves))

    found = summary.summarise(out, "uniform")  # "longer" has no file yet
    assert {(each.suite, each.reference) for each in found} == {("rates", "uniform")}
    assert [(each.endpoint, each.kind, each.n_runs) for each in found] == [
        (endpoint, kind, n)
        for endpoint, n in ((summary.AT_MEAN, 6), (summary.AT_BEST, 3))
        for kind in ("stock", "defaults", "LAP")
    ]
    assert found[2].better[0] == 1.0 and found[2].effect[0] > 200  # LAP, of the mean over the rates
    assert {each.kind for each in summary.summarise(out, "defaults")} == {"LAP"}
    summary.write(out)
    assert "| `rates` | mean over three rates | LAP | uniform | 6 |" in (out / "results" / "summary.md").read_text()
    assert "| `rates` | mean over three rates | LAP | defaults | 6 |" in (out / "results" / "defaults.md").read_text()
    assert (out / "results" / "summary.png").read_bytes().startswith(b"\x89PNG")

    lines = (out / "data" / "rates.csv").read_text().splitlines()
    (out / "data" / "rates.csv").write_text("\n".join(lines[:-1]))
    assert {each.suite for each in summary.summarise(out, "uniform")} == {"plain"}


def test_without_a_twin_stock_is_the_reference(out, monkeypatch):
    monkeypatch.setattr(tables, "SAMPLES", 50)
    suite = replace(suites.SUITES["pairs"], seeds=6, n_evaluations=5)
    monkeypatch.setattr(summary, "CAMPAIGNS", {"pairs": learning.campaign_of("pairs", suite)})
    rng = np.random.default_rng(0)
    write_rows(out / "data" / "pairs.csv", rows_of(suite, {name: rng.normal(size=(6, 1, 5)) for name in suite.variants}))
    assert {each.reference for each in summary.summarise(out, "uniform")} == {"stock"}


def test_each_arm_is_compared_with_its_uniform_twin():
    """Without a twin, the reference is the first arm. The twin itself has no reference."""
    found = {name: learning.references_of(suite) for name, suite in suites.SUITES.items()}
    assert set(found["sparse"].values()) == {"PERDQN, uniform"} and "PERDQN, uniform" not in found["sparse"]
    discrete = found["discrete"]
    assert discrete["PERDQN, Double Q, 3 steps"] == "uniform, Double Q, 3 steps"
    assert discrete["PERDQN"] == discrete["uniform, Double Q, 3 steps"] == "DQN" and "DQN" not in discrete
    assert set(found["memory-doors"]) == set(suites.SUITES["memory-doors"].variants) - {"zero state"}
    assert set(learning.CAMPAIGNS["bits-rates"].arms) - set(found["bits-rates"]) == {"uniform"}
    assert set(found["bits-rates"].values()) == {"uniform"} and found["memory-cartpole-again"] == {}
    for name in OF_AGENTS:
        first = next(iter(suites.SUITES[name].variants))
        assert all(other == first or other.endswith("uniform") for other in found[name].values())


@pytest.mark.parametrize(
    ("name", "controls"),
    [
        ("sparse", {"PERDQN": "shuffled, PERDQN"}),
        ("chain-rates", {"defaults": "shuffled, defaults"}),
        ("bits-rates", {
            "LAP": "shuffled, LAP",
            **{f"epsilon {e}, no weights": "shuffled, no weights" for e in ("1e-06", "0.01", "0.1")},
            "epsilon 0.01, mean, eta 0.25": "shuffled, epsilon 0.01, mean, eta 0.25",
        }),
        ("discrete", {}),
    ],
)  # fmt: skip
def test_arms_are_compared_with_their_shuffled_controls(name, controls):
    assert {each.arm: each.reference for each in learning.CAMPAIGNS[name].secondary} == controls


def test_an_interval_without_width_is_left_out():
    estimates = {"a": np.array([[1.0], [1.0], [1.0]]), "b": np.array([[0.5], [0.4], [0.6]])}
    assert tables.cell(estimates, "a", 2) == "1.00"
    assert tables.cell(estimates, "b", 2) == "0.50 [0.40, 0.60]"


def test_the_summary_knows_arms_by_their_names():
    kinds = {
        name: {arm: kind for arm in map(suites.arm_of, suite.variants) if (kind := summary.kind_of(arm))}
        for name, suite in suites.SUITES.items()
    }
    at_another_rate = "PERDQN, learning rate / 4"
    assert at_another_rate in suites.SUITES["sparse"].variants and at_another_rate not in kinds["sparse"]
    stock = {"DQN": "stock", "PERDQN": "defaults", "PERDQN, LAP": "LAP"}
    assert kinds["sparse"] == {**stock, "PERDQN, uniform": "uniform", "PERDQN, candidate": "candidate"}
    assert kinds["discrete"] == stock
    assert kinds["bits-rates"] == {
        "DQN": "stock",
        "uniform": "uniform",
        "defaults": "defaults",
        "LAP": "LAP",
        "epsilon 1e-06, no weights": "no weights",
        "epsilon 0.01, mean, eta 0.25": "candidate",
    }


def test_the_figure_of_rare_success_shows_the_arms_with_their_controls_in_three_panels(out, monkeypatch):
    """A campaign that is not complete leaves no figure."""
    for name in ("dose-response", "chain-sizes", "doorkey-sizes", "rarity"):
        shutil.copy(DATA / f"{name}.csv", out / "data")
    drawn = []
    monkeypatch.setattr(summary, "save", lambda figure, path: drawn.append((figure, path)))
    summary.draw_where_success_is_rare(out)
    ((figure, path),) = drawn
    assert path == out / "results" / "rarity.png"
    arms = ["defaults", "no weights", "shuffled, defaults", "shuffled, no weights"]
    for axes, n_tasks in zip(figure.axes, (6, 6, 2), strict=True):
        lines = [line for line in axes.lines if line.get_label() in arms]
        assert [line.get_label() for line in lines] == arms and all(len(line.get_xdata()) == n_tasks for line in lines)
        assert [line.get_linestyle() for line in lines] == ["-", "-", "--", "--"]
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    assert min(text.get_size() / 72 / figure.get_figwidth() * 360 for text in texts) >= 11
    (out / "data" / "chain-sizes.csv").write_text("")
    summary.draw_where_success_is_rare(out)
    assert len(drawn) == 1


def test_the_figure_of_replays_shows_a_gain_for_each_rarity_and_control(out, monkeypatch):
    """The gain of an arm is 256 over the draws of a transition times 10 times the radius; its control has the root of it."""
    each, drawn = summary.PLANE, []
    monkeypatch.setattr(summary, "save", lambda figure, path: drawn.append((figure, path)))
    summary.draw_gain_over_replays(out)
    assert not drawn  # no run is there

    def gain_of(task: str, arm: str) -> float:
        n_envs, radius = (float(part) for part in task.split(" x "))
        exponent = {"shuffled": 0.5}.get(arm.partition(",")[0], float(arm in ("defaults", "no weights")))
        return (n_envs * 10 * radius) ** exponent

    rows = []
    for jobs_of in (campaigns.all_choosing_jobs, campaigns.reporting_jobs):
        for name, (task, arm, *_) in jobs_of(each, rows):
            updates = 1e4 / gain_of(task, arm) * (1 + abs(np.log(float(name["rate"]) / 1e-3)))
            rows.append({**{key: str(value) for key, value in name.items()}, "updates": str(updates), "solved": "1"})
    write_rows(out / "data" / "plane.csv", rows)
    summary.draw_gain_over_replays(out)
    ((figure, path),) = drawn
    assert path == out / "results" / "replays.png"
    for axes, arm in zip(figure.axes, ("defaults", "no weights"), strict=True):
        assert axes.get_title() == arm and axes.get_xlim()[0] > axes.get_xlim()[1]
        lines = [line for line in axes.lines if len(line.get_xdata()) == 3]
        solid, dashed = lines[::2], lines[1::2]
        assert {line.get_linestyle() for line in solid} == {"-"} and {line.get_linestyle() for line in dashed} == {"--"}
        for line, control, radius in zip(solid, dashed, (0.3, 0.1, 0.05), strict=True):
            np.testing.assert_allclose(line.get_xdata(), [16, 4, 1])
            np.testing.assert_allclose(line.get_ydata(), [n_envs * 10 * radius for n_envs in (16, 64, 256)])
            np.testing.assert_allclose(control.get_ydata(), np.sqrt(line.get_ydata()))
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    assert min(text.get_size() / 72 / figure.get_figwidth() * 360 for text in texts) >= 11


@pytest.mark.parametrize(
    ("arm", "role"),
    [
        ("SAC, preloaded", "stock"),
        ("PERDQN, demonstrations 0.25", "defaults"),
        ("PERDQN, uniform", "uniform"),
        ("shuffled, PERDQN", "defaults"),
        ("PERSAC, LAP", "LAP"),
    ],
)
def test_a_color_means_one_thing_in_all_figures(arm, role):
    assert figures.role_of(arm) == role


def test_the_published_summary_has_every_task():
    text = (RESULTS / "summary.md").read_text()
    for name, suite in suites.SUITES.items():
        for environment in () if name in OF_AGENTS else suite.environments:
            assert f"{environment}, {suite.steps:,} steps" in text


@pytest.mark.slow
def test_the_published_summary_follows_from_the_runs(out):
    for path in DATA.glob("*.csv"):
        (out / "data" / path.name).write_bytes(path.read_bytes())
    summary.write(out)
    for name in ("summary.md", "defaults.md"):
        assert (out / "results" / name).read_text() == (RESULTS / name).read_text()


# A figure with its interval, e.g. "0.093 [0.045, 0.149]".
WITH_INTERVAL = re.compile(r"-?\d[\d,.]* \[-?[\d,.]+, -?[\d,.]+\]")


@pytest.mark.parametrize("page", ["findings.md", "README.md", "../docs/results.md", "../docs/choosing.md", "../README.md"])
def test_every_figure_with_an_interval_is_in_a_table(page):
    def figures_of(text: str) -> set[str]:
        return {re.sub(r"(?<=\d),(?=\d)", "", each) for each in WITH_INTERVAL.findall(re.sub(r"\s+", " ", text))}

    tables_of_runs = set().union(*(figures_of(path.read_text()) for path in RESULTS.glob("*.md")))
    assert len(tables_of_runs) > 500 and "999 [998, 1000]" in figures_of("so 999 [998,\n1,000]")
    assert figures_of((ROOT / page).read_text()) <= tables_of_runs


def test_the_evidence_page_shows_every_campaign():
    page = (ROOT / "findings.md").read_text()
    published = {name: made for name, made in evidence.CAMPAIGNS.items() if (RESULTS / f"{name}.md").exists()}
    assert len(published) > 25
    for name, made in published.items():
        assert f"(results/{name}.md)" in page
        assert not made.figure or f"(results/{name}.png)" in page


@pytest.mark.parametrize("name", NAMES)
def test_published_runs_are_complete(name):
    """The file has each run of the suite once, with all evaluations, and no other run."""
    made, rows = learning.CAMPAIGNS[name], campaign.read(DATA / f"{name}.csv")
    asked = [{key: str(value) for key, value in job.items()} for job, _ in campaigns.reporting_jobs(made, rows)]
    there = [{key: row[key] for key in asked[0]} for row in rows]
    assert all(row in asked for row in there)
    assert len({str(row) for row in there}) == len(rows) == len(asked)
    if suites.SUITES[name].solved is None:
        assert not np.isnan([list(campaigns.evaluations_of(row).values()) for row in rows]).any()


def rates_campaign() -> tuple:
    """Make a campaign at three rates, and rows in which the best rate of an arm differs between the halves of the seeds."""
    variants = suites.at_rates({"SAC": suites.Variant("SAC"), "PERSAC": suites.Variant("PERSAC")}, 1e-3, (1 / 3, 1.0, 3.0))
    suite = replace(
        suites.SUITES["pairs"], variants=variants, rates=(1 / 3, 1.0, 3.0), seeds=8, n_evaluations=5, episode_length=None
    )
    rng = np.random.default_rng(0)
    curves = {name: rng.normal(size=(8, 3, 5)) * 0.1 + 5 for name in ("SAC", "PERSAC")}
    curves["PERSAC"][::2, 2] += 10  # luck on the even seeds
    return suite, curves


def test_permutation_p_equals_a_list_of_all_permutations():
    """Include ties and two environments."""
    rng = np.random.default_rng(3)
    x, y = rng.integers(4, size=(3, 2)), rng.integers(2, 6, size=(3, 2))

    def u(x, y):
        return float(np.mean(0.5 + 0.5 * np.sign(x[:, None] - y[None])))

    def shared_out(column):
        both = np.concatenate([x[:, column], y[:, column]])
        for chosen in itertools.combinations(range(6), 3):
            yield both[list(chosen)], np.delete(both, chosen)

    of_all = [(u(*a) + u(*b)) / 2 for a, b in itertools.product(shared_out(0), shared_out(1))]
    expected = np.mean(np.abs(np.array(of_all) - 0.5) >= abs(u(x, y) - 0.5) - 1e-9)
    assert tables.permutation_p(x, y) == pytest.approx(expected)
    separated = np.arange(5.0)[:, None]
    assert tables.permutation_p(separated, separated + 9) == pytest.approx(2 / 252)


def test_the_best_rate_is_chosen_and_measured_on_different_seeds():
    suite, curves = rates_campaign()
    made = learning.campaign_of("name", suite)
    scores = report.values_of(made, rows_of(suite, curves), made.score)
    best, at_best = tables.at_best_rates(scores)
    assert best["PERSAC"] == 2
    np.testing.assert_array_equal(at_best["PERSAC"][:, 0], curves["PERSAC"][1::2, 2, -1])
    assert at_best["PERSAC"].max() < 6


@pytest.mark.parametrize("changes", [{}, dict(score="success"), dict(solved=5.0)])
def test_the_page_at_three_rates_has_tables_and_a_picture(changes, out, monkeypatch):
    monkeypatch.setattr(tables, "SAMPLES", 50)
    suite, curves = rates_campaign()
    made = learning.campaign_of("name", replace(suite, **changes))
    write_rows(out / "data" / "name.csv", rows_of(replace(suite, **changes), curves))
    report.write(made, out)
    text = (out / "results" / "name.md").read_text()
    assert text.count("\n| PERSAC |") == 3 and text.count("\n| SAC |") == 1
    assert (out / "results" / "name.png").read_bytes().startswith(b"\x89PNG")
    if not changes:
        middle = np.sort(curves["SAC"][:, 1, -1])[2:-2].mean()
        assert f"{middle:.1f} [" in text
        mean = np.mean(curves["PERSAC"][..., -1].mean(axis=1) - curves["SAC"][..., -1].mean(axis=1))
        assert made.primary[1].over == "mean"
        assert report.differences(
            made, made.primary[1], report.scores_of(made, rows_of(suite, curves))
        ).mean() == pytest.approx(mean)


# ---- the corridor of doors


def walk(side: int, action: int) -> tuple[list, list]:
    """Play an episode with this sign and always the same action; return its observations and rewards."""
    env = environments.DoorsEnv()
    seed = next(seed for seed in range(100) if env.reset(seed=seed)[0].argmax() == side)
    observations, rewards, terminated = [env.reset(seed=seed)[0]], [], False
    while not terminated:
        observation, reward, terminated, truncated, _ = env.step(np.int64(action))
        assert not truncated and env.observation_space.contains(observation)
        observations.append(observation)
        rewards.append(reward)
    return observations, rewards


def test_doors_cannot_be_solved_from_four_frames():
    """The sign is shown once. After it, all four corridors look the same, and the right door depends on the sign."""
    walks = {side: walk(side, action=2) for side in range(4)}
    assert {side: sum(rewards) for side, (_, rewards) in walks.items()} == pytest.approx({0: 0, 1: 0, 2: 1, 3: 0})
    observations = np.array([each for each, _ in walks.values()])
    assert observations.shape == (4, 51, 11)
    assert len(np.unique(observations[:, 0], axis=0)) == 4
    assert (observations[:, 1:] == observations[:1, 1:]).all()
    (doors,) = np.nonzero(walks[2][1])  # steps whose action opens one
    assert doors.tolist() == [7, 14, 21, 28, 35, 42, 49]
    assert len(np.unique(observations[0, doors], axis=0)) == 7


def test_the_figure_of_control_has_a_learning_curve_for_each_arm_and_task(out, monkeypatch):
    """The return of an arm is its number times that of the seed and the tenths of the run; FetchReach has 50 less."""
    each, drawn = summary.CONTROL, []
    monkeypatch.setattr(summary, "save", lambda figure, path: drawn.append((figure, path)))
    summary.draw_control(out)
    assert not drawn  # no run is there
    rows = []
    for jobs_of in (
        lambda *_: [campaigns.job(each, *run) for run in each.others],
        campaigns.all_choosing_jobs,
        campaigns.reporting_jobs,
    ):
        for name, (task, arm, *_) in jobs_of(each, rows):
            number = [*each.arms, "random"].index(arm) + 1
            lower = 50 if task == "FetchReach-v4" else 0
            curve = {str(i): str(number * name["seed"] * i - lower) for i in range(1, 17)}
            rows.append({**{key: str(value) for key, value in name.items()}, **curve})
    write_rows(out / "data" / "control.csv", rows)
    summary.draw_control(out)
    ((figure, path),) = drawn
    assert path == out / "results" / "control.png"
    seed = np.mean(each.reporting)
    for axes, task, thousands in zip(figure.axes, each.tasks, (8, 8, 8, 4), strict=True):
        assert task.startswith(axes.get_title())
        assert [line.get_label() for line in axes.lines] == list(each.arms)
        for number, line in enumerate(axes.lines, 1):
            np.testing.assert_allclose(line.get_xdata(), thousands * np.arange(1, 17) / 16)
            np.testing.assert_allclose(line.get_ydata(), number * seed * np.arange(1, 17))
            assert line.get_linestyle() == ("--" if "shuffled" in line.get_label() else "-")
    texts = [text for text in figure.findobj(Text) if text.get_text()]
    assert min(text.get_size() / 72 / figure.get_figwidth() * 360 for text in texts) >= 11
