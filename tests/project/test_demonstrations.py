"""The campaign on demonstrations: its learners, its experts, and a report that follows from its runs."""

import csv

import numpy as np
import pytest

from sb3_per.compare.campaign import read
from tests.utils import ROOT, benchmark

demonstrations = benchmark("demonstrations")
doorkey = benchmark("doorkey")
report = benchmark("demonstrations_report")
EVIDENCE = ROOT / "docs" / "evidence"
TASKS = demonstrations.TASKS
CAR, DOORKEY = "demonstrations", "demonstrations-doorkey"


@pytest.mark.parametrize(("name", "arm"), [(name, arm) for name in TASKS for arm in demonstrations.arms_of(TASKS[name])])
def test_arms_differ_only_in_where_the_demonstrations_are(name, arm):
    """Demonstrations are preloaded into the ring, kept apart, or absent; all other settings are the same."""
    task = TASKS[name]
    n = task.expert_episodes().size()
    model = demonstrations.make_model(task, arm, 1e-3, 0)
    buffer = model.replay_buffer
    assert buffer.size() == (n if arm.endswith(", preloaded") else 0)
    share = float(arm.partition(", demonstrations ")[2] or 0.0)
    if arm.startswith("PER"):
        assert buffer.settings.demonstration_fraction == share
        assert len(buffer.demonstrations) == (n if share else 0)
    assert type(model) is task.classes[arm.startswith("PER")]
    assert (model.learning_starts, model.batch_size) == (0 if ", " in arm else 1_000, {CAR: 256, DOORKEY: 64}[name])


@pytest.mark.parametrize(("name", "least"), [(CAR, 95.0), (DOORKEY, 0.9)])
def test_the_expert_solves_ten_episodes(name, least):
    episodes = TASKS[name].expert_episodes()
    n = episodes.size()
    assert episodes.dones[:n].sum() == 10 and episodes.rewards[:n].sum() / 10 > least


def test_the_planner_finds_the_shortest_way():
    """In this grid, the key is two cells ahead of the agent, and the door is beside the agent."""
    env = doorkey.make_env()
    grids = (env.reset(seed=seed) and env.unwrapped.grid for seed in range(100))
    grid = next(
        g for g in grids if all(g.get(*at) and g.get(*at).type == kind for at, kind in (((1, 3), "key"), ((2, 1), "door")))
    )
    left, right, ahead = doorkey.LEFT, doorkey.RIGHT, doorkey.FORWARD
    to_the_door = [ahead, doorkey.PICK_UP, left, left, ahead, right, doorkey.TOGGLE]
    found = doorkey.plan(grid, ((1, 1), 1, False, False))
    assert len(found) == len([*to_the_door, ahead, ahead, right, ahead, ahead])


def test_a_success_is_an_episode_with_a_reward():
    assert demonstrations.success_rate([0.0, 0.1, 0.9, 0.0]) == 0.5


def test_choosing_and_reporting_seeds_are_different():
    assert set(demonstrations.CHOOSING).isdisjoint(demonstrations.REPORTING)


def rows_of(name, n_seeds):
    """Make rows in which the higher rate is better for every arm, and only learners with demonstrations solve the task."""
    rows, cap = [], TASKS[name].max_steps
    for run, _ in demonstrations.choosing_jobs(name):
        rows.append({**run, "steps": 5_000 if run["learning_rate"] == 1e-3 else 9_000, "solved": 1, "score": 1.0})
    for run, _ in demonstrations.reporting_jobs(name, demonstrations.chosen_rates(name, rows)):
        if run["seed"] in demonstrations.REPORTING[:n_seeds]:
            solved = int("demonstrations" in run["arm"])
            rows.append({**run, "steps": 3_000 if solved else cap, "solved": solved, "score": solved * TASKS[name].solved})
    return [{key: str(value) for key, value in row.items()} for row in rows]


def test_two_runs_have_no_interval():
    steps = np.array([4_000.0, 7_000.0, 4_000.0, 7_000.0, 5_500.0])
    assert report.mean_cell(steps[:2], 0) == "5,500"
    assert report.mean_cell(steps, 0).startswith("5,500 [")


def test_the_report_counts_only_complete_seeds(tmp_path):
    text = "\n".join(report.report(CAR, rows_of(CAR, 6)[:-1]))
    assert text.startswith("5 of 10 seeds, 200 to 204")
    # Two groups of five do not overlap in 2 of 252 permutations, and Holm's correction multiplies by four.
    assert "| PERSAC, demonstrations 0.25 | 0.001 | 5 of 5 | 3,000 | 17,000 | 0.032 | 90 |" in text
    assert "| SAC | 0.001 | 0 of 5 | 20,000 | 0 | 1.000 | 0 |" in text
    rows = rows_of(DOORKEY, 6)
    with (tmp_path / f"{DOORKEY}.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    report.main(["--out", str(tmp_path)])
    assert (tmp_path / f"{DOORKEY}.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / f"{DOORKEY}.md").read_text()
    assert text.startswith("6 of 10 seeds") and "| DQN, preloaded | 0.001 | 0 of 6 | 15,000 |  |  | 0.00 |" in text
    assert not (tmp_path / f"{CAR}.md").exists()


@pytest.mark.parametrize("name", TASKS)
def test_the_published_table_follows_from_the_runs(name):
    rows = read(EVIDENCE / f"{name}.csv")
    assert (EVIDENCE / f"{name}.md").read_text() == "\n".join(report.report(name, rows)).rstrip() + "\n"
