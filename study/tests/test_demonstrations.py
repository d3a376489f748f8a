"""The campaign on demonstrations: its learners, its experts, and a report that follows from its runs."""

import pytest

from sb3_per.compare.campaign import read
from study import campaign, demonstrations, doorkey, report

DATA = campaign.ROOT / "data"
TASKS = demonstrations.TASKS
CAR, DOORKEY = TASKS


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
    assert doorkey.success_rate([0.0, 0.1, 0.9, 0.0]) == 0.5


def test_the_report_counts_stopped_runs_and_compares_with_preloaded():
    """Only learners with demonstrations of their own solve the task."""
    each, rows = demonstrations.CAMPAIGNS[0], read(DATA / "demonstrations.csv")
    for row in rows:
        if int(row["seed"]) in each.reporting:
            is_solved = "demonstrations" in row["arm"]
            row |= {
                "steps": "3000" if is_solved else "20000",
                "solved": str(int(is_solved)),
                "score": "90" if is_solved else "0",
            }
    text = "\n".join(report.report(each, rows, []))
    assert "| PERSAC, demonstrations 0.25 | 3,000 | 90 |" in text and "| SAC | 20,000 (10) | 0 |" in text
    # All ten have the same sign in 2 of 1,024 choices, and Holm's correction multiplies by four.
    assert f"| PERSAC, demonstrations 0.25 | SAC, preloaded | {CAR} | 17,000 | 1.00 | 0.008 (< 0.001) |" in text
    assert f"| SAC | SAC, preloaded | {CAR} | 0 | 0.50 | 1.000 (1.000) |" in text
