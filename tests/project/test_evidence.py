"""The campaigns of docs/evidence: suites compare like with like, runs are reproducible, and reports follow from the rows."""

import itertools
import re
import shutil
from dataclasses import replace

import numpy as np
import pytest

from sb3_per import SumTree
from sb3_per.compare import campaign
from tests.utils import ROOT, benchmark

campaigns = benchmark("campaign")
figures = benchmark("figures")
learning = benchmark("learning")
report = benchmark("report")
summary = benchmark("summary")
suites = benchmark("suites")
tables = benchmark("tables")

NAMES = list(suites.SUITES)
OF_AGENTS = list(suites.MEMORY_SUITES)  # the others compare settings
EVIDENCE = ROOT / "docs" / "evidence"


# ---- suites


@pytest.mark.parametrize("name", OF_AGENTS)
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


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith("-confirmation")])
def test_a_confirmation_suite_repeats_runs_on_new_seeds(name):
    """Even and odd seeds are the two halves, as in the suite that is confirmed."""
    suite, original = suites.SUITES[name], suites.SUITES[name.replace("confirmation", "rates")]
    assert set(learning.seeds_of(suite)).isdisjoint(learning.seeds_of(original))
    assert learning.jobs_of(suite)[0][0]["seed"] == suite.first_seed and suite.first_seed % 2 == 0
    assert list(suite.variants)[: len(suite.rates)] == list(original.variants)[: len(suite.rates)]  # stock
    for variant in suite.variants.keys() & original.variants.keys():
        assert learning.fingerprint(suite, variant) == learning.fingerprint(original, variant)
    assert {suites.arm_of(variant) for variant in suite.variants.keys() - original.variants.keys()} == {
        "bits-confirmation": {"shuffled, defaults"}
    }.get(name, set())


def test_a_suite_that_keeps_an_unknown_arm_is_refused():
    with pytest.raises(ValueError, match="nothing"):
        suites.suite_of(dict(variants={"SAC": "SAC"}, kept=["SAC", "nothing"]))


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
        campaigns.selected(NAMES, "nothing")


def short(name: str, **changes) -> suites.Suite:
    """Shorten a suite to a few steps."""
    suite = suites.SUITES[name]
    settings = {**suite.settings, "learning_starts": 20, "buffer_size": 500, "batch_size": 16}
    variants = suite.variants
    if name in OF_AGENTS:  # whose settings are those of the variants
        settings, small = suite.settings, dict(learning_starts=60, buffer_size=500, batch_size=4)
        variants = {v: replace(m, settings={**m.settings, **small}) for v, m in variants.items() if "PPO" not in m.algorithm}
    return replace(suite, steps=120, settings=settings, variants=variants, **{"n_evaluations": 6, "n_episodes": 2, **changes})


# Suites that differ from another suite only in numbers or in the environment.
TWIN = "pairs-rates|-confirmation|memory-(cartpole|pendulum)|continuous"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if re.search(TWIN, name) else name for name in NAMES]
)
@pytest.mark.parametrize("which", [0, -1])
def test_evaluations_do_not_change_training(name, which):
    """A run with half of the evaluations gives the same scores at these steps, which also shows that runs are reproducible."""
    suite = short(name, solved=None)
    environment, variant = suite.environments[0], list(suite.variants)[which]
    before = learning.fingerprint(suite, variant)
    often = learning.train(suite, environment, variant, 1)
    assert learning.fingerprint(suite, variant) == before
    assert list(often) == ["20", "40", "60", "80", "100", "120"]
    seldom = learning.train(replace(suite, n_evaluations=3), environment, variant, 1)
    assert seldom == {step: often[step] for step in ("40", "80", "120")}


@pytest.mark.parametrize("name", ["bits-confirmation", "continuous", "memory-pendulum"])
def test_quick_runs_give_scores(name):
    """With hindsight, a quick run must be long enough for an episode to end before the first draw."""
    suite = learning.quick(suites.SUITES[name])
    ((_, arguments), *_) = learning.jobs_of(suite)
    assert all(value != "" for value in learning.train(*arguments).values())


def test_a_run_ends_when_it_is_solved():
    suite = short("sparse", solved=-1e9)
    returns = learning.train(suite, suite.environments[0], "DQN", 0)
    assert [value == "" for value in returns.values()] == [False] + 5 * [True]


def test_quick_runs_need_a_folder_of_their_own(capsys):
    with pytest.raises(SystemExit):
        learning.main(["--quick"])
    assert "--out" in capsys.readouterr().err


# ---- report


def synthetic(seeds: int = 6, **changes) -> tuple:
    """Make a suite, rows as its campaign writes them, and the returns in them. The last variant runs only in environment B."""
    suite = suites.SUITES["continuous"]
    variants = {**suite.variants, "PERTD3, PAL": replace(suite.variants["PERTD3, PAL"], environments=("B",))}
    suite = replace(suite, environments=("A", "B"), variants=variants, seeds=seeds, n_evaluations=5, **changes)
    rng = np.random.default_rng(0)
    returns = {v: rng.normal(100 + 10 * i, 5, (seeds, 2, 5)) for i, v in enumerate(suite.variants)}
    returns["PERTD3, PAL"][:, 0] = np.nan
    columns = list(map(str, learning.evaluation_steps(suite)))
    rows = [
        {**{key: str(value) for key, value in name.items()}, **dict(zip(columns, map(repr, map(float, values)), strict=True))}
        for name, (_, environment, variant, seed) in learning.jobs_of(suite)
        for values in [returns[variant][seed - suite.first_seed, suite.environments.index(environment)]]
    ]
    return suite, rows, returns


def test_load_skips_rows_of_other_settings_and_incomplete_seeds():
    suite, rows, returns = synthetic()
    assert len(rows) == 6 * (2 * 4 - 1)
    for variant, values in report.load(suite, rows).items():
        np.testing.assert_array_equal(values, returns[variant])
    lacking = [row for row in rows if not (row["variant"] == "PERTD3" and row["environment"] == "B" and row["seed"] == "2")]
    for changed in (lacking, [{**row, "settings": "other"} if row not in lacking else row for row in rows]):
        for variant, values in report.load(suite, changed).items():
            np.testing.assert_array_equal(values, np.delete(returns[variant], 2, axis=0))


def test_load_reads_seeds_from_the_first_seed_of_the_suite():
    suite, rows, returns = synthetic(first_seed=40)
    for variant, values in report.load(suite, rows).items():
        np.testing.assert_array_equal(values, returns[variant])
    assert {row["seed"] for row in rows} == {str(seed) for seed in range(40, 46)}
    assert all(len(values) == 0 for values in report.load(replace(suite, first_seed=0), rows).values())


def test_score_is_the_mean_of_the_last_fifth():
    curves = {"a": np.arange(40.0).reshape(1, 2, 20)}
    np.testing.assert_array_equal(report.final(curves)["a"], [[(16 + 17 + 18 + 19) / 4, (36 + 37 + 38 + 39) / 4]])


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
    figure, low, high = tables.improvement(scores, {"other": "stock"})["other"][:, 0]
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
    lines = report.compare("score", dict(zip("ab", pair, strict=True)), 0, {"a": "b"})
    assert ("| 1 |" in lines[2]) == ("mean gain, paired" in lines[0]) == is_paired


def test_a_pair_is_resampled_together():
    values = np.array([[100.0, 1.0], [200.0, 2.0], [300.0, 3.0]])
    assert tables.with_interval(values, lambda pair: pair[:, 0].mean() / pair[:, 1].mean()) == pytest.approx([100.0] * 3)
    assert tables.with_interval(values[:, 0])[0] == 200.0


def test_steps_until_the_goal_is_reached():
    reached = np.array([[False, True, False], [True, True, True], [False, False, False]])
    np.testing.assert_array_equal(report.steps_until(reached, [10, 20, 30]), [20, 10, 30])


@pytest.mark.parametrize("solved", [None, 105.0])
def test_the_report_has_a_table_for_each_environment_and_a_picture(tmp_path, solved, monkeypatch):
    monkeypatch.setattr(tables, "SAMPLES", 50)
    suite, rows, returns = synthetic(solved=solved, episode_length=100)
    if solved:  # a task that is solved is the only one of its suite
        suite = replace(suite, environments=("B",))
    path = tmp_path / "name.csv"
    with path.open("w", newline="") as file:
        writer = campaign.csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    report.write_suite("name", suite, tmp_path)
    text = (tmp_path / "name.md").read_text()
    n_tables, has_few = (2, False) if solved else (4, True)
    assert [text.count(f"\n| {variant} |") >= n_tables for variant in suite.variants] == [True, True, True, not has_few]
    middle = np.sort(returns["TD3"][:, 0, -1])[1:-1].mean()
    assert solved or f"| TD3 | {middle:.0f} [" in text
    assert (tmp_path / "name.png").read_bytes().startswith(b"\x89PNG")


def test_a_suite_without_runs_has_no_report(tmp_path):
    report.write_suite("name", suites.SUITES["pairs"], tmp_path)
    assert not list(tmp_path.iterdir())


def write_rows(path, suite, curves) -> None:
    """Write the CSV file of a campaign from curves of shape (runs, environments, evaluations)."""
    columns = list(map(str, learning.evaluation_steps(suite)))
    with path.open("w", newline="") as file:
        writer = campaign.csv.DictWriter(file, ["environment", "variant", "seed", "settings", *columns])
        writer.writeheader()
        for name, (_, environment, variant, seed) in learning.jobs_of(suite):
            values = curves[variant][seed - suite.first_seed, suite.environments.index(environment)]
            writer.writerow({**name, **dict(zip(columns, map(float, values), strict=True))})


def test_the_summary_has_only_complete_suites(tmp_path, monkeypatch):
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
    rng = np.random.default_rng(0)
    curves = {name: rng.normal(size=(6, 1, 5)) + 9 for name in (*plain.variants, *at_rates.variants)}
    for name in ("LAP", "LAP @ 0.333"):
        curves[name] += 100
    for name in ("plain", "rates"):
        write_rows(tmp_path / f"{name}.csv", made[name], curves)

    found = summary.summarise(tmp_path, "uniform")  # "longer" has no file yet
    assert {(each.suite, each.reference) for each in found} == {("rates", "uniform")}
    assert [(each.endpoint, each.kind, each.n_runs) for each in found] == [
        (endpoint, kind, n)
        for endpoint, n in ((summary.AT_MEAN, 6), (summary.AT_BEST, 3))
        for kind in ("stock", "defaults", "LAP")
    ]
    assert found[2].better[0] == 1.0 and found[2].effect[0] > 200  # LAP, of the mean over the rates
    assert {each.kind for each in summary.summarise(tmp_path, "defaults")} == {"LAP"}
    summary.main(["--out", str(tmp_path)])
    assert "| `rates` | mean over three rates | LAP | uniform | 6 |" in (tmp_path / "summary.md").read_text()
    assert "| `rates` | mean over three rates | LAP | defaults | 6 |" in (tmp_path / "defaults.md").read_text()
    assert (tmp_path / "summary.png").read_bytes().startswith(b"\x89PNG")

    lines = (tmp_path / "rates.csv").read_text().splitlines()
    (tmp_path / "rates.csv").write_text("\n".join(lines[:-1]))
    assert {each.suite for each in summary.summarise(tmp_path, "uniform")} == {"plain"}


def test_without_a_twin_stock_is_the_reference(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "SAMPLES", 50)
    suite = replace(suites.SUITES["pairs"], seeds=6, n_evaluations=5)
    monkeypatch.setattr(summary, "SUITES", {"pairs": suite})
    rng = np.random.default_rng(0)
    write_rows(tmp_path / "pairs.csv", suite, {name: rng.normal(size=(6, 1, 5)) for name in suite.variants})
    assert {each.reference for each in summary.summarise(tmp_path, "uniform")} == {"stock"}


def test_each_variant_is_compared_with_its_uniform_twin():
    """Without a twin, the reference is the first variant. The twin itself has no reference."""
    sparse, discrete, bits = (suites.SUITES[name] for name in ("sparse", "discrete", "bits-rates"))
    assert set(report.references_of(sparse, sparse.variants).values()) == {"PERDQN, uniform"}
    assert "PERDQN, uniform" not in report.references_of(sparse, sparse.variants)
    found = report.references_of(discrete, discrete.variants)
    assert found["PERDQN, Double Q, 3 steps"] == "uniform, Double Q, 3 steps"
    assert found["PERDQN"] == found["uniform, Double Q, 3 steps"] == "DQN" and "DQN" not in found
    doors = suites.SUITES["memory-doors"]
    assert set(report.references_of(doors, doors.variants)) == set(doors.variants) - {"zero state"}
    arms = dict.fromkeys(map(suites.arm_of, bits.variants))
    assert set(arms) - set(report.references_of(bits, arms)) == {"uniform"}
    assert set(report.references_of(bits, arms).values()) == {"uniform"}
    for name in OF_AGENTS:
        suite = suites.SUITES[name]
        for other in report.references_of(suite, suite.variants).values():
            assert other == next(iter(suite.variants)) or other.endswith("uniform")


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


@pytest.mark.parametrize("page", ["docs/evidence.md", "docs/gallery.md"])
def test_pages_show_the_summary_figures(page):
    text = (ROOT / page).read_text()
    assert all(f"(evidence/{name}.png)" in text for name in ("rarity", "summary", "dose-response"))


def test_the_figure_of_rare_success_shows_the_arms_with_their_controls_in_three_panels(tmp_path, monkeypatch):
    """A campaign that is not complete leaves no figure."""
    for name in ("dose-response", "chain-sizes", "doorkey-sizes", "rarity"):
        shutil.copy(ROOT / "docs" / "evidence" / f"{name}.csv", tmp_path)
    drawn = []
    monkeypatch.setattr(summary, "draw_rarity", lambda panels, path: drawn.append((panels, path)))
    summary.draw_where_success_is_rare(tmp_path)
    ((panels, path),) = drawn
    assert path == tmp_path / "rarity.png"
    for panel, n_seeds in zip(panels, (15, 40, 12), strict=True):
        assert len(panel.names) == len(panel.campaign.tasks)
        for arm in ("uniform", "defaults", "no weights", "shuffled, defaults", "shuffled, no weights"):
            assert panel.scores[arm].shape == (n_seeds, len(panel.names))
    (tmp_path / "chain-sizes.csv").write_text("")
    summary.draw_where_success_is_rare(tmp_path)
    assert len(drawn) == 1


def test_evidence_begins_with_ten_lines_that_have_a_figure():
    beginning = (ROOT / "docs" / "evidence.md").read_text().partition("\n## ")[0]
    lines = re.split(r"^\d+\. ", beginning, flags=re.MULTILINE)[1:]
    assert len(lines) == 10
    assert all(re.search(r"\d", line) for line in lines)


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
    text = (EVIDENCE / "summary.md").read_text()
    for name, suite in suites.SUITES.items():
        for environment in () if name in OF_AGENTS else suite.environments:
            assert f"{environment}, {suite.steps:,} steps" in text


@pytest.mark.slow
def test_the_published_summary_follows_from_the_runs(tmp_path):
    for path in EVIDENCE.glob("*.csv"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    summary.main(["--out", str(tmp_path)])
    for name in ("summary.md", "defaults.md"):
        assert (tmp_path / name).read_text() == (EVIDENCE / name).read_text()


def test_the_evidence_page_shows_every_suite():
    page = (ROOT / "docs" / "evidence.md").read_text()
    shown = [name for name in NAMES if f"{{include}} evidence/{name}.md" in page and f"(evidence/{name}.png)" in page]
    assert [name for name in NAMES if name not in shown] == []


@pytest.mark.parametrize("name", NAMES)
def test_published_runs_are_complete(name):
    """The file has each run of the suite once, with all evaluations, and no other run."""
    suite = suites.SUITES[name]
    rows = campaign.read(EVIDENCE / f"{name}.csv")
    asked = [{key: str(value) for key, value in job.items()} for job, _ in learning.jobs_of(suite)]
    there = [{key: row[key] for key in asked[0]} for row in rows]
    assert all(row in asked for row in there)
    assert len({str(row) for row in there}) == len(rows)
    assert len(rows) == len(asked)
    curves = report.load(suite, rows)
    assert all(values.shape[0] == suite.seeds for values in curves.values())
    if suite.solved is None:
        for environment in suite.environments:
            assert not any(np.isnan(values).any() for values in report.in_one(suite, curves, environment).values())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_published_reports_follow_from_the_runs(name, tmp_path):
    (tmp_path / f"{name}.csv").write_bytes((EVIDENCE / f"{name}.csv").read_bytes())
    report.write_suite(name, suites.SUITES[name], tmp_path)
    assert (tmp_path / f"{name}.md").read_text() == (EVIDENCE / f"{name}.md").read_text()


def rates_suite() -> tuple:
    """Make a suite at three rates, and curves in which the best rate of an arm differs between the halves of the seeds."""
    variants = suites.at_rates({"SAC": suites.Variant("SAC"), "PERSAC": suites.Variant("PERSAC")}, 1e-3, (1 / 3, 1.0, 3.0))
    suite = replace(
        suites.SUITES["pairs"], variants=variants, rates=(1 / 3, 1.0, 3.0), seeds=8, n_evaluations=5, endpoint="E."
    )
    rng = np.random.default_rng(0)
    curves = {name: rng.normal(size=(8, 1, 5)) * 0.1 + 5 for name in variants}
    curves["PERSAC @ 3"][::2] += 10  # luck on the even seeds
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
    suite, curves = rates_suite()
    scores = {arm: np.stack([report.final(curves)[f"{arm} @ {r:.3g}"] for r in suite.rates]) for arm in ("SAC", "PERSAC")}
    best, at_best = tables.at_best_rates(scores)
    assert best["PERSAC"] == 2
    np.testing.assert_array_equal(at_best["PERSAC"], report.final(curves)["PERSAC @ 3"][1::2])
    assert at_best["PERSAC"].max() < 6


@pytest.mark.parametrize("changes", [{}, dict(score="success"), dict(solved=5.0)])
def test_the_report_at_three_rates_has_tables_and_a_picture(changes, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "SAMPLES", 50)
    suite, curves = rates_suite()
    lines = report.report_rates(replace(suite, **changes), curves, tmp_path / "rates.png")
    text = "\n".join(lines)
    assert text.count("\n| PERSAC |") == text.count("\n| SAC |") == 3
    assert (tmp_path / "rates.png").read_bytes().startswith(b"\x89PNG")
    if not changes:
        middle = np.sort(report.final(curves)["SAC @ 1"][:, 0])[2:-2].mean()
        assert f"{middle:.1f} [" in text


@pytest.mark.parametrize("page", ["README.md", *(f"docs/{page}.md" for page in ("choosing", "evidence", "troubleshooting"))])
def test_figures_with_intervals_are_in_the_reports(page):
    """Each figure with an interval, such as 13.8 [12.1, 14.6], is in a table of docs/evidence."""
    thousands = re.compile(r"(?<=\d),(?=\d{3})")
    reported = thousands.sub("", "".join(path.read_text() for path in EVIDENCE.glob("*.md")))
    text = thousands.sub("", " ".join((ROOT / page).read_text().split()))
    stated = re.findall(r"-?\d[\d.]* \[-?[\d.]+, -?[\d.]+\]", text)
    assert stated or page in ("README.md", "docs/choosing.md")  # they leave intervals to the other pages
    assert [figure for figure in stated if figure not in reported] == []


@pytest.mark.parametrize("page", ["published", "recurrent", "recipes"])
def test_figures_of_other_pages_are_in_the_reports(page):
    test_figures_with_intervals_are_in_the_reports(f"docs/{page}.md")


def test_the_stated_ratio_of_the_cliffwalk_is_measured():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert "Blind Cliffwalk with 12 states is learned with a tenth of uniform replay's updates" in text
    (row,) = [line for line in (EVIDENCE / "cliffwalk.md").read_text().splitlines() if line.startswith("| 12 |")]
    assert row.split("|")[-3].strip() == "10.0"


# ---- weights


def test_a_larger_epsilon_makes_weights_more_even_and_normalization_does_not(tmp_path, capsys, monkeypatch):
    weights = benchmark("weights")
    monkeypatch.setattr(weights, "EPSILONS", (1e-6, 0.01))
    found = {(n, e): weights.metrics_of(e, n, 20) for n in ("max", "mean", "none") for e in weights.EPSILONS}
    for epsilon in weights.EPSILONS:
        sizes, means = zip(*(found[n, epsilon] for n in ("max", "mean", "none")), strict=True)
        np.testing.assert_allclose(sizes[1:], [sizes[0]] * 2, rtol=1e-4)
        assert means[0].max() < 1.0 and means[1] == pytest.approx(1.0)
        assert means[2].mean() == pytest.approx(1.0, abs=4 * means[2].std() / np.sqrt(20))  # E[1 / (N P)] = 1
    assert found["max", 0.01].mean(axis=1).min() > 5 * found["max", 1e-6].mean(axis=1).max()
    weights.main(["--out", str(tmp_path)])
    assert capsys.readouterr().out.count("\n| max |") == 2
    assert (tmp_path / "weights.png").read_bytes().startswith(b"\x89PNG")


# ---- run time


def test_the_rival_python_tree_draws_the_same_slots():
    """The masses are integers, so that their sums are exact in both trees."""
    baselines = benchmark("baselines")
    rng = np.random.default_rng(0)
    ours, rival = SumTree(13), baselines.PythonTree(13)
    for _ in range(20):
        leaves, masses = rng.integers(13, size=5), rng.integers(1, 9, size=5)
        uniforms = rng.random(64)
        for tree in (ours, rival):
            tree.update(np.arange(3, 8), np.full(5, 2.0))
            tree.update(leaves, masses)
        assert ours.total == rival.total
        for drawn, expected in zip(rival.draw(uniforms), ours.draw(uniforms), strict=True):
            np.testing.assert_array_equal(drawn, expected)
        np.testing.assert_array_equal(rival[:], ours[:])


# ---- the corridor of doors


def walk(side: int, action: int) -> tuple[list, list]:
    """Play an episode with this sign and always the same action; return its observations and rewards."""
    env = benchmark("doors_env").DoorsEnv()
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
