"""The campaigns of one description: declared seeds, the choice of rates, the order of the runs, and reports."""

import dataclasses
import importlib
import math
import shutil

import numpy as np
import pytest

from study import __main__ as evidence
from study import ages, campaign, chain_sizes, control, doorkey_sizes, learning, plane, report, wall_clock

CAMPAIGNS = tuple(each for name, each in evidence.CAMPAIGNS.items() if name not in learning.CAMPAIGNS)
CHAIN, DOORKEY, AGES = chain_sizes.CAMPAIGN, doorkey_sizes.CAMPAIGN, ages.GAMES_CAMPAIGN
CONTROL = control.CAMPAIGN
by_name = pytest.mark.parametrize("each", CAMPAIGNS, ids=lambda each: each.name)


def columns_with(each, score: float) -> dict:
    """Make the columns of a run with this score."""
    if each.is_log or each.is_cost:
        steps = math.exp(-score) if each.is_log else -score
        return {"steps": steps, "updates": steps, "time": steps, "solved": 1, "score": 1.0}
    if each.name == "actors":
        return {"score": score}
    if each in control.CAMPAIGNS:
        return {str(i): score for i in range(1, 17)}
    if each.name == "wall-clock":
        return {str(i): score for i in range(250, 16_001, 250)}
    steps = range(1, 21) if each is DOORKEY else range(20_000, 300_001, 20_000)
    return {str(step): score for step in steps}


def rows_of(each, jobs, score) -> list[dict[str, str]]:
    """Make the rows of jobs; the score is a function of task, arm, option, rate and seed by name."""
    keys = ("task", "arm", "option", "rate", "seed")
    rows = [{**name, **columns_with(each, score(dict(zip(keys, run, strict=True))))} for name, run in jobs]
    return [{key: str(value) for key, value in row.items()} for row in rows]


def others_of(each) -> list[dict[str, str]]:
    return rows_of(each, [campaign.job(each, *run) for run in each.others], lambda name: 1.0)


def best_at(rate: float):
    """Make a function of scores that are highest at this rate, and below zero."""
    return lambda name: -1.0 - abs(math.log(float(name["rate"]) / rate))


@by_name
def test_declared_seeds_and_contrasts(each):
    assert all(set(each.seeds_choosing(task)).isdisjoint(each.reporting) for task in each.tasks)
    fewer = {"modern-dqn": 4, "actors": 5, "whole-way": 5}
    assert len(each.reporting) >= fewer.get(each.name, 10) and list(each.rates) == sorted(each.rates)
    assert each.twin.startswith("uniform") or each.name.startswith(("demonstrations", "actors", "compiled", "whole"))
    compared = {*each.arms, *(wall_clock.N_UPDATES if each.name == "wall-clock" else ())}  # draws, at their better number
    for contrast in (*each.primary, *each.secondary, *each.by_task, *each.undeclared):
        assert {contrast.arm, contrast.reference} <= compared and contrast.over in (
            "mean",
            "slope",
            "pairs",
            "each",
            *each.axes,
        )
    names = [tuple(name.values()) for name, _ in campaign.all_choosing_jobs(each, [])]
    assert len(set(names)) == len(names) and bool(names) == bool(each.choosing)
    assert bool(campaign.reporting_jobs(each, [])) != bool(each.choosing)


@by_name
def test_the_grid_grows_where_a_choice_is_at_its_edge_and_reporting_waits_for_it(each):
    task, rows = each.tasks[0], []
    for n_grown in range(each.growth + 1 if each.choosing else 0):
        assert len(campaign.grid(each, task, rows)) == len(each.rates) + n_grown
        assert campaign.reporting_jobs(each, rows) == []
        jobs = campaign.all_choosing_jobs(each, rows)
        done = [run for run, _ in campaign.done(rows, jobs)]
        jobs = [job for job in jobs if job[1] not in done]
        rows += rows_of(each, jobs, best_at(1e3))
    rates = campaign.grid(each, task, rows)
    assert len(rates) == len(each.rates) + (each.growth if each.choosing else 0) and list(rates) == sorted(rates)
    jobs = campaign.reporting_jobs(each, rows)
    n_of_a_seed = len(each.runs_of_a_seed)
    assert len(jobs) == len(each.reporting) * n_of_a_seed
    assert {name["seed"] for name, _ in jobs[:n_of_a_seed]} == {each.reporting[0]}  # seed by seed
    assert {arguments[3] for _, arguments in jobs} == {rates[-1]}


def test_rates_inside_the_grid_are_chosen_by_size():
    rows = rows_of(
        CHAIN, campaign.all_choosing_jobs(CHAIN, []), lambda name: best_at(3e-3 if name["task"] < 10 else 1e-2)(name)
    )
    jobs = campaign.reporting_jobs(CHAIN, rows)
    assert {(name["task"], name["rate"]) for name, _ in jobs} == {(n, "0.003" if n < 10 else "0.01") for n in CHAIN.tasks}


def test_one_rate_for_both_sizes_is_the_best_of_their_mean():
    """1e-3 is the best rate of 5x5 by little, 3e-4 that of 6x6 by much."""
    scores = {(5, 1e-3): 0.6, (5, 3e-4): 0.5, (6, 1e-3): 0.1, (6, 3e-4): 0.4}
    rows = rows_of(
        DOORKEY, campaign.all_choosing_jobs(DOORKEY, []), lambda name: scores.get((name["task"], name["rate"]), 0.0)
    )
    assert {name["rate"] for name, _ in campaign.reporting_jobs(DOORKEY, rows)} == {"0.0003"}


def test_rows_of_other_settings_do_not_count():
    rows = rows_of(CHAIN, campaign.all_choosing_jobs(CHAIN, []), best_at(3e-3))
    other = dataclasses.replace(CHAIN, settings={**CHAIN.settings, "period": 6})
    assert campaign.reporting_jobs(CHAIN, rows) and not campaign.reporting_jobs(other, rows)


@pytest.mark.parametrize("arm", ["stock", "shuffled, defaults"])
def test_a_run_on_the_chain_is_reproducible_and_ends_when_the_way_is_known(arm):
    first = chain_sizes.train(5, arm, "", 3e-3, 901)
    assert first["solved"] == 1 and first["successes"] > 0
    assert 260 <= first["steps"] < chain_sizes.cap_of(5) and first["steps"] % (chain_sizes.PERIOD * chain_sizes.N_ENVS) == 0
    assert chain_sizes.train(5, arm, "", 3e-3, 901) == first


def test_a_run_of_doorkey_has_all_evaluations(monkeypatch):
    for name, value in (("STEPS", {6: 1_040}), ("N_EVALUATIONS", 2), ("N_EPISODES", 2)):
        monkeypatch.setattr(doorkey_sizes, name, value)
    row = doorkey_sizes.train(6, "no weights", "", 1e-3, 901)
    assert list(row) == ["1", "2"] and all(0 <= share <= 1 for share in row.values())


@pytest.mark.parametrize(
    ("task", "arm", "option"), [("Breakout", "age", "decay 3"), ("Pendulum", "defaults times age", "decay 1")]
)
def test_a_run_of_the_ages_has_its_decay_and_all_evaluations(monkeypatch, task, arm, option):
    settings = {**ages.SUITES[task].settings, "learning_starts": 20, "buffer_size": 1_000}
    suite = dataclasses.replace(ages.SUITES[task], steps=320, settings=settings, n_evaluations=4, n_episodes=2)
    monkeypatch.setitem(ages.SUITES, task, suite)
    made = []
    make_model = learning.make_model
    monkeypatch.setattr(learning, "make_model", lambda *args: made.append(make_model(*args)) or made[0])
    row = ages.train(task, arm, option, 0.5, 901)
    assert list(row) == list(map(str, learning.evaluation_steps(suite)))
    assert made[0].replay_buffer.settings.age_decay == float(option[-1])
    assert made[0].learning_rate == 0.5 * suite.settings["learning_rate"]
    scheme = "uniform" if arm == "age" else "proportional"
    assert made[0].replay_buffer.settings.scheme == scheme


def test_random_successes_become_rarer_with_the_size(monkeypatch):
    monkeypatch.setattr(chain_sizes, "RANDOM_EPISODES", 400)
    shares = [chain_sizes.random_successes(n)["successes"] / 400 for n in (5, 7, 9)]
    assert 0.4 < shares[0] < 0.7 and shares[0] > shares[1] > shares[2]
    monkeypatch.setattr(doorkey_sizes, "RANDOM_EPISODES", 100)
    assert 0 <= doorkey_sizes.random_successes(5)["successes"] <= 10


def test_points_move_as_written_and_end_at_the_goal_or_after_fifty_steps():
    """One point at a time, with Python numbers, in place of arrays of all points."""
    env = plane.PlaneVecEnv(7, 0.3, seed=3)
    observations = env.reset()
    ages = env.ages.tolist()
    rng = np.random.default_rng(4)
    n_arrived = n_truncated = 0
    for _ in range(300):
        # Upwards, downwards or to the right, so that some points arrive.
        actions = np.where(np.arange(7)[:, None] < 4, [2.0, 0.0], rng.uniform(-1, 1, (7, 2)))
        next_observations, rewards, ended, infos = env.step(actions)
        for i in range(7):
            x, y, v_x, v_y = observations[i].tolist()
            v_x, v_y = (0.8 * v + 0.04 * max(-1.0, min(1.0, float(a))) for v, a in zip((v_x, v_y), actions[i], strict=True))
            x, y = (max(-1.0, min(1.0, p)) for p in (x + v_x, y + v_y))
            ages[i] += 1
            has_arrived = math.hypot(x - 0.7, y) < 0.3
            assert rewards[i] == has_arrived and ended[i] == (has_arrived or ages[i] == 50)
            if ended[i]:
                assert infos[i]["TimeLimit.truncated"] == (not has_arrived)
                np.testing.assert_allclose(infos[i]["terminal_observation"], [x, y, v_x, v_y], atol=1e-6)
                assert -1 <= next_observations[i, 0] <= -0.6 and not next_observations[i, 2:].any()
                n_arrived += has_arrived
                n_truncated += not has_arrived
                ages[i] = 0
            else:
                np.testing.assert_allclose(next_observations[i], [x, y, v_x, v_y], atol=1e-6)
        observations = next_observations
    assert n_arrived and n_truncated


def test_the_plane_of_the_example_is_that_of_the_campaign(monkeypatch):
    monkeypatch.syspath_prepend(campaign.ROOT.parent / "examples")
    from plane_env import PlaneVecEnv

    example, ours = PlaneVecEnv(40, seed=0), plane.PlaneVecEnv(40, PlaneVecEnv.radius, seed=0)
    example.reset()
    ours.reset()
    rng = np.random.default_rng(1)
    n_arrived = 0
    for _ in range(200):
        example.positions[:5] = [0.62, 0.0]  # so that some arrive
        for name in ("positions", "velocities", "ages"):  # starts differ, since the generators are used in another order
            setattr(ours, name, getattr(example, name).copy())
        actions = rng.uniform(-1.5, 1.5, (40, 2))
        found, expected = example.step(actions), ours.step(actions)
        goes_on = ~expected[2]
        np.testing.assert_array_equal(found[0][goes_on], expected[0][goes_on])
        np.testing.assert_array_equal(found[1], expected[1])
        np.testing.assert_array_equal(found[2], expected[2])
        for info, other, arrived in zip(found[3], expected[3], found[1], strict=True):
            assert info.pop("is_success", False) == bool(arrived) and info.keys() == other.keys()
            assert info.get("TimeLimit.truncated") == other.get("TimeLimit.truncated")
            np.testing.assert_array_equal(info.get("terminal_observation", 0), other.get("terminal_observation", 0))
        n_arrived += int(found[1].sum())
        starts = found[0][found[2]]
        assert ((-1 <= starts[:, 0]) & (starts[:, 0] <= -0.6) & (abs(starts[:, 1]) <= 1)).all() and not starts[:, 2:].any()
    assert n_arrived > 100


def test_the_random_policy_arrives_as_often_as_the_axis_of_rarity_says(monkeypatch):
    monkeypatch.setattr(plane, "RANDOM_EPISODES", 20_000)
    for radius, share in plane.RANDOM_SHARES.items():
        error = math.sqrt(share * (1 - share) / 20_000)
        found = plane.random_successes(f"64 x {radius}")["successes"] / 20_000
        assert abs(found - share) < 4 * error


@pytest.mark.parametrize("arm", ["stock", "shuffled, no weights"])
def test_a_run_in_the_plane_is_reproducible_and_makes_one_update_for_each_common_step(monkeypatch, arm):
    monkeypatch.setattr(plane, "CAP", 40)
    monkeypatch.setattr(plane, "PERIOD", 20)
    first = plane.train("16 x 0.3", arm, "", 1e-3, 901)
    assert first == {"updates": 40, "steps": 16 * (50 + 40 + 1), "solved": 0}
    assert plane.train("16 x 0.3", arm, "", 1e-3, 901) == first


def test_a_run_in_the_plane_ends_when_two_checks_in_a_row_succeed(monkeypatch):
    shares = iter([0.95, 0.5, 0.9, 0.9])
    monkeypatch.setattr(plane, "PERIOD", 10)
    monkeypatch.setattr(plane, "share_that_arrives", lambda *_: next(shares))
    row = plane.train("16 x 0.3", "defaults", "", 1e-3, 901)
    assert row["updates"] == 40 and row["solved"] == 1


def test_an_arm_that_runs_in_one_task_is_chosen_and_reported_there_alone():
    each = plane.CAMPAIGN
    choosing = campaign.all_choosing_jobs(each, [])
    jobs = campaign.reporting_jobs(each, rows_of(each, choosing, best_at(1e-3)))
    for found in (choosing, jobs):
        assert {name["task"] for name, _ in found if name["arm"] in ("LAP", "stock")} == {plane.MIDDLE}
        assert {name["task"] for name, _ in found if name["arm"] == "defaults"} == set(each.tasks)


def test_the_report_of_the_plane_finds_slopes_over_replays_and_rarity():
    """The defaults gain a factor 4 / replays ** 0.5; draws without weights gain 1 / share of random successes ** 0.25."""
    each = plane.CAMPAIGN

    def score(name) -> float:
        n_envs, radius = plane.cell_of(name["task"])
        gains = {
            "defaults": math.log(4) - 0.5 * math.log(256 / n_envs),
            "no weights": -0.25 * math.log(plane.RANDOM_SHARES[radius]),
        }
        return gains.get(name["arm"], 0.0) - math.log(2_000 + name["seed"])

    rows = rows_of(each, campaign.all_choosing_jobs(each, []), best_at(1e-3))
    rows += rows_of(each, campaign.reporting_jobs(each, rows), score)
    text = "\n".join(report.report(each, rows, []))
    assert f"| defaults | uniform | slope over replays | {math.exp(-0.5):.3f} | < 0.001 |" in text
    assert "| defaults | uniform | slope over rarity | 1.000 |" in text
    assert f"| no weights | uniform | slope over rarity | {math.exp(0.25):.3f} | < 0.001 |" in text
    assert "| no weights | uniform | slope over replays | 1.000 |" in text
    assert "| defaults | uniform | mean over the tasks | 2.000 |" in text


def test_a_run_in_one_environment_is_stopped_later(monkeypatch):
    monkeypatch.setattr(plane, "CAP", 20)
    monkeypatch.setattr(plane, "CAP_OF_ONE", 30)
    monkeypatch.setattr(plane, "PERIOD", 10)
    row = plane.train("1 x 0.3", "uniform", "", 1e-3, 901)
    assert (row["updates"], row["solved"]) == (30, 0)


def test_the_control_suite_repeats_actions_and_sums_up_rewards():
    """Compare with the environment of the suite itself."""
    pytest.importorskip("dm_control")
    env = control.make_one("pendulum-swingup", 7)  # first: it says that nothing is drawn
    from dm_control import suite

    plain = suite.load("pendulum", "swingup", task_kwargs=dict(random=7))
    observation = env.reset()[0]
    np.testing.assert_allclose(observation, np.concatenate(list(plain.reset().observation.values())), rtol=1e-6)
    rng = np.random.default_rng(0)
    for length in range(1, 251):
        action = rng.uniform(-1, 1, 1).astype(np.float32)
        observation, reward, terminated, truncated, _ = env.step(action)
        steps = [plain.step(action) for _ in range(4)]  # whose bounds are -1 and 1
        assert reward == pytest.approx(sum(step.reward for step in steps))
        np.testing.assert_allclose(observation, np.concatenate(list(steps[-1].observation.values())), rtol=1e-5, atol=1e-6)
        assert not terminated and truncated == steps[-1].last() == (length == control.LENGTHS["pendulum-swingup"])
    assert env.observation_space.contains(observation)


def test_means_of_returns_have_the_updates_until_their_end():
    """All 32 environments end 80 episodes at the same steps. The n-th of each has the return n."""
    returns = np.repeat(np.arange(80.0), 32)
    found = control.columns_of("FetchReach-v4", returns.tolist())
    assert found == {str(250 * (i + 1)): 5.0 * i + 2.0 for i in range(16)}


@pytest.mark.parametrize("arm", [control.RANDOM, "shuffled, no weights"])
def test_a_run_of_control_is_reproducible_and_counts_all_episodes_but_the_first(monkeypatch, arm):
    for name, value in (("N_ENVS", 2), ("UPDATES", {"Pendulum-v1": 400}), ("N_MEANS", {"Pendulum-v1": 2})):
        monkeypatch.setattr(control, name, value)
    seen = []
    columns_of = control.columns_of
    monkeypatch.setattr(control, "columns_of", lambda task, returns: seen.append(returns) or columns_of(task, returns))
    first = control.train("Pendulum-v1", arm, "", 1e-3, 901)
    assert list(first) == ["200", "400"] and len(seen[0]) == 4 and len(set(seen[0])) == 4
    assert first["200"] == pytest.approx(sum(seen[0][:2]) / 2, abs=1e-4)
    assert control.train("Pendulum-v1", arm, "", 1e-3, 901) == first
    assert control.train("Pendulum-v1", arm, "", 1e-3, 902)["200"] != first["200"]


def test_two_runs_share_no_start(monkeypatch):
    monkeypatch.setattr(control, "N_ENVS", 3)
    starts = []
    for seed in (900, 901):
        env = control.make_envs("Pendulum-v1", seed)
        env.seed(control.first_seed_of(seed))
        starts += env.reset().tolist()
        env.close()
    assert len({tuple(start) for start in starts}) == 6


def control_rows(of_random: float = 5.0) -> list[dict[str, str]]:
    """
    Make all rows: the defaults gain 50% in every task, draws without weights 20%, and their control nothing.

    :param of_random: return of the random policy in reacher-hard, where the defaults have 15
    """
    rows = rows_of(CONTROL, campaign.all_choosing_jobs(CONTROL, []), best_at(1e-3))
    factors = {"defaults": 1.5, "no weights": 1.2}

    def score(name) -> float:
        steps = 10.0 * factors.get(name["arm"], 1.0) * (1 + 0.001 * (name["seed"] - 204.5))
        return steps - control.offset_of(name["task"])

    rows += rows_of(CONTROL, campaign.reporting_jobs(CONTROL, rows), score)
    others = [campaign.job(CONTROL, *run) for run in CONTROL.others]
    return rows + rows_of(
        CONTROL, others, lambda name: (of_random if name["task"] == "reacher-hard" else 1.0) - control.offset_of(name["task"])
    )


def test_the_report_of_control_is_in_units_of_the_twin():
    text = "\n".join(report.report(CONTROL, control_rows(), []))
    assert "| defaults | uniform | mean over the tasks | 0.500" in text
    assert "| no weights | uniform | mean over the tasks | 0.200" in text
    assert "| no weights | shuffled, no weights | mean over the tasks | 0.200" in text
    assert "so no test counts" not in text


def test_a_task_that_no_arm_learns_counts_in_no_test():
    """There the defaults have ten times the return of the twin, and less than twice that of a random policy."""
    rows = control_rows(of_random=51.0)
    for row in rows:
        if row["task"] == "reacher-hard" and row["arm"] == "defaults" and int(row["seed"]) in CONTROL.reporting:
            row |= {str(i): "100.0" for i in range(1, 17)}
    text = "\n".join(report.report(CONTROL, rows, []))
    assert "so no test counts: reacher-hard." in text
    assert "| defaults | uniform | mean over the tasks | 0.500" in text
    scores = text[: text.index("so no test counts")]
    assert "| arm | pendulum-swingup | finger-turn_hard | reacher-hard |" in scores and "100.00" in scores
    assert "| arm | pendulum-swingup | finger-turn_hard | FetchReach-v4 |" in text
    learned = "\n".join(report.report(CONTROL, rows_with_random(rows, 50.0), []))
    assert "so no test counts" not in learned and "| defaults | uniform | mean over the tasks | 0.500" not in learned


def rows_with_random(rows: list[dict[str, str]], value: float) -> list[dict[str, str]]:
    columns = {str(i): str(value) for i in range(1, 17)}
    return [row | columns if (row["task"], row["arm"]) == ("reacher-hard", control.RANDOM) else row for row in rows]


def test_no_task_that_is_learned_gives_no_test():
    rows = control_rows()
    rows = [row | {str(i): "1000" for i in range(1, 17)} if row["arm"] == control.RANDOM else row for row in rows]
    text = "\n".join(report.report(CONTROL, rows, []))
    assert "Primary endpoint" not in text and "pendulum-swingup, finger-turn_hard, reacher-hard, FetchReach-v4." in text


GAIN = 0.1


def chain_rows() -> list[dict[str, str]]:
    """
    Make all rows of the chain. The gain of the defaults grows by exp(0.1) a state from 5 on, that of draws without weights has
    another sign for each second seed, and the controls gain nothing. One run of the defaults was stopped.
    """
    rows = rows_of(CHAIN, campaign.all_choosing_jobs(CHAIN, []), best_at(3e-3))

    def score(name) -> float:
        gain = {"defaults": GAIN * (name["task"] - 5), "no weights": (-1) ** name["seed"] * GAIN}.get(name["arm"], 0.0)
        return gain - math.log(2 ** name["task"] * (1 + 0.01 * (name["seed"] - 200)))

    rows += rows_of(CHAIN, campaign.reporting_jobs(CHAIN, rows), score)
    stopped = next(row for row in rows if (row["seed"], row["task"], row["arm"]) == ("203", "15", "defaults"))
    stopped["solved"] = "0"
    return rows


def test_the_report_finds_the_gain_and_its_slope():
    rows = chain_rows()
    rarity = [dict(campaign=CHAIN.name, task=str(n), episodes="1000", successes=str(512 // n)) for n in CHAIN.tasks]
    text = "\n".join(report.report(CHAIN, rows, rarity))
    assert text.startswith("40 seeds, 200 to 239, on which nothing was chosen.")
    assert "|  | 5 states | 7 states |" in text and "| share | 10% | 7.3% |" in text
    mean, slope = math.exp(5 * GAIN), math.exp(GAIN)
    for reference in ("uniform", "shuffled, defaults"):
        assert f"| defaults | {reference} | mean over the tasks | {mean:.3f} | < 0.001 |" in text
        assert f"| defaults | {reference} | slope over the size | {slope:.3f} | < 0.001 |" in text
    row = next(line for line in text.splitlines() if line.startswith("| no weights | uniform | mean"))
    assert "| 1.000 [" in row and row.endswith("| 1.000 |")
    assert next(line for line in text.splitlines() if line.startswith("| defaults | ")).endswith("] (1) |")


def test_the_report_compares_doorkey_over_both_sizes():
    """The defaults gain 0.2 in one size and 0.1 in the other, and so does their control: it is not the priorities."""
    rows = rows_of(DOORKEY, campaign.all_choosing_jobs(DOORKEY, []), best_at(1e-3))
    gains = {"defaults": {5: 0.2, 6: 0.1}, "shuffled, defaults": {5: 0.2, 6: 0.1}, "no weights": {5: -0.1, 6: 0.1}}
    rows += rows_of(
        DOORKEY, campaign.reporting_jobs(DOORKEY, rows), lambda name: 0.5 + gains.get(name["arm"], {}).get(name["task"], 0.0)
    )
    text = "\n".join(report.report(DOORKEY, rows, []))
    assert "| defaults | uniform | mean over the tasks | 0.150 | < 0.001 |" in text
    assert "| no weights | uniform | mean over the tasks | 0.000 | 1.000 |" in text
    assert "| defaults | shuffled, defaults | mean over the tasks | 0.000 | 1.000 |" in text


def test_the_report_of_the_ages_is_in_units_of_the_twin():
    """Age has 20% more than the twin in every game but not at its end; the product 30% more."""
    factors = {"age": 1.2, "defaults times age": 1.3}

    def score(name) -> float:
        of_option = 1.0 if name["rate"] == 0.5 and name["option"] in ("", "decay 3") else 0.5
        of_game = 10.0 ** ages.GAMES.index(name["task"])
        return of_option * of_game * factors.get(name["arm"], 1.0) * (1 + 0.01 * (-1) ** name["seed"])

    rows = rows_of(AGES, campaign.all_choosing_jobs(AGES, []), score)
    rows += rows_of(AGES, campaign.reporting_jobs(AGES, rows), score)
    for row in rows:
        if row["arm"] == "age":
            for column in ("260000", "280000", "300000"):
                row[column] = str(float(row[column]) / 1.2)
    text = "\n".join(report.report(AGES, rows, []))
    assert "| age | 0.5, decay 3 |" in text and "| defaults | 0.5 |" in text
    assert f"| age | {1.2 * 0.8 + 0.2:.3f} [" in text and "| defaults times age | 1.300 [" in text
    assert "| age | uniform | all pairs of seed and task | 0.160" in text
    assert "| defaults times age | uniform | all pairs of seed and task | 0.300" in text
    last = text[text.index("Secondary, last three evaluations") :]
    assert "| age | uniform | all pairs of seed and task | 0.000 | 1.000 |" in last
    assert "| defaults times age | uniform | all pairs of seed and task | 0.300" in last


@by_name
def test_an_incomplete_campaign_shows_counts_and_no_result(each):
    rows = rows_of(each, campaign.all_choosing_jobs(each, []), best_at(each.rates[len(each.rates) // 2]))
    rows += others_of(each) + rows_of(each, campaign.reporting_jobs(each, rows), lambda name: -1.0)
    n_choosing = len(campaign.all_choosing_jobs(each, rows))
    n_reporting = len(each.reporting) * len(each.runs_of_a_seed)
    choosing = "" if not each.choosing else f"{n_choosing:,} of {n_choosing:,} choosing runs and "
    assert report.progress(each, rows)[1]
    assert not report.progress(each, rows[:-1])[1]
    lines = report.report(each, rows[:-1], [])
    left = f"The others take about {each.seconds.get(each.tasks[-1], 0) / 3600:.1f} core hours."
    words = f"{choosing}{n_reporting - 1:,} of {n_reporting:,} reporting runs are there. {left}"
    assert lines[0] == words
    assert lines[1:] == ["", "The campaign is not complete, so no result is shown."]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in learning.CAMPAIGNS else name for name in evidence.CAMPAIGNS]
)
def test_the_published_page_follows_from_the_runs(name, out, monkeypatch):
    if not (campaign.ROOT / "data" / f"{name}.csv").exists() and not (campaign.ROOT / "results" / f"{name}.md").exists():
        pytest.skip("is under way, and nothing is published")
    for each in (name, "rarity"):
        shutil.copy(campaign.ROOT / "data" / f"{each}.csv", out / "data")
    monkeypatch.setattr(report, "draw", lambda *_: None)
    report.write(evidence.CAMPAIGNS[name], out)
    assert (out / "results" / f"{name}.md").read_text() == (campaign.ROOT / "results" / f"{name}.md").read_text()


def test_cartpole_shows_the_last_policy_beside_the_mean_of_the_last_fifth():
    """A run that is good at its next to last evaluation and bad at its last one counts as such."""
    name = "memory-cartpole-again"
    again, suite = learning.CAMPAIGNS[name], learning.SUITES[name]
    rows = [{key: str(value) for key, value in name.items()} for name, _ in campaign.reporting_jobs(again, [])]
    for row in rows:
        row |= {str(step): "500" for step in learning.evaluation_steps(suite)}
    rows[3]["100000"] = "200"
    text = report.report(again, rows, [])
    assert text[4].startswith("| last policy | 500 | 200 | 14 of 15 | 200, 500,")
    assert text[5].startswith("| mean of the last fifth | 500 | 350 | 14 of 15 | 350, 500,")


def test_tables_and_figures_are_made_without_a_run(out, monkeypatch):
    """No time is left for a run, and those that are there are reported."""
    for each in ("demonstrations", "rarity"):
        shutil.copy(campaign.ROOT / "data" / f"{each}.csv", out / "data")
    rows = (out / "data" / "demonstrations.csv").read_text()
    (out / "data" / "demonstrations.csv").write_text("\n".join(rows.splitlines()[:-1]) + "\n")
    evidence.main(["--only", "demonstrations", "--seconds", "0", "--out", str(out)])
    assert "49 of 50 reporting runs are there" in (out / "results" / "demonstrations.md").read_text()
    assert not list((out / "results").glob("*.png"))
    (out / "data" / "demonstrations.csv").write_text(rows)
    evidence.main(["--only", "demonstrations", "--seconds", "0", "--out", str(out)])
    assert (out / "results" / "demonstrations.md").read_text() == (campaign.ROOT / "results" / "demonstrations.md").read_text()
    assert (out / "results" / "demonstrations.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "name",
    [
        "dose_response",
        "chain_sizes",
        "doorkey_sizes",
        "ages",
        "modern_dqn",
        "demonstrations",
        "plane",
        "control",
        "wall_clock",
        "compiled",
        "whole_way",
    ],
)
def test_what_was_declared_is_on_the_page_that_the_script_names(name):
    assert "declared.md" in importlib.import_module(f"study.{name}").__doc__
    assert f"`study/{name}.py`" in (campaign.ROOT / "declared.md").read_text()


def test_random_steps_are_all_before_learning_starts_and_fall_with_epsilon():
    """One random number for each step, in place of the mean of epsilon."""
    settings = dict(learning_starts=100, exploration_fraction=0.5, exploration_final_eps=0.2)
    rng, n_random = np.random.default_rng(0), 0
    for step in range(900):
        epsilon = max(0.2, 1 - 0.8 * step / 500)
        n_random += step < 100 or rng.random() < epsilon
    assert learning.share_of_random_steps(900, 1_000, settings) == pytest.approx(n_random / 900, abs=0.04)
    assert learning.share_of_random_steps(80, 1_000, settings) == 1.0


def test_the_largest_rate_of_two_arms_is_tested_over_all_seeds():
    """The defaults lose 0.5 at the largest rate, and nothing elsewhere."""
    each = learning.CAMPAIGNS["bits-confirmation"]
    scores = {arm: np.tile(np.linspace(0, 1, 20)[:, None], (1, 3)) for arm in each.arms}
    scores["defaults"] = scores["defaults"] - np.array([0.0, 0.0, 0.5])
    text = "\n".join(report.tests(each, "Not declared", each.undeclared, scores))
    assert (
        "| defaults | uniform | the largest rate | -0.50 |" in text
        and "| < 0.001 (" in text
        and "without a correction" in text
    )
