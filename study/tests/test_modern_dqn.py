"""The MinAtar campaign with a modern DQN: its arms, its random policy, and its report."""

import numpy as np
import pytest

from sb3_per.compare.campaign import read
from study import campaign, learning, report
from study import modern_dqn as modern

DATA = campaign.ROOT / "data"


def test_arms_differ_only_in_the_draw():
    for arm, variant in modern.ARMS.items():
        own = dict(variant.settings)
        assert own.pop("double_q") is True and own.pop("n_steps") == 3
        assert list(own) == ["replay_buffer_kwargs"] and variant.algorithm == "PERDQN", arm


def test_the_report_compares_runs_of_few_seeds_unpaired():
    """The defaults score half as much again in every run: one of 70 ways to share out the runs in each of five games."""
    each, rng = modern.CAMPAIGN, np.random.default_rng(0)
    rows = read(DATA / "modern-dqn.csv")
    for row in rows:
        if int(row["seed"]) in each.reporting:
            score = 10.0 * (1.5 if row["variant"].startswith("defaults") else 1.0) * (1 + 0.01 * rng.random())
            row |= dict.fromkeys(map(str, learning.evaluation_steps(modern.SUITE)), str(score))
    text = "\n".join(report.report(each, rows, []))
    assert "| defaults | uniform | mean over the tasks | 1.00 | < 0.001 |" in text
    assert "| random | 0.38 |" in text


def test_the_twin_learns_every_game():
    """It has twice the return of a random policy. A game without that would be no part of the primary endpoint."""
    each, rows = modern.CAMPAIGN, read(DATA / "modern-dqn.csv")
    twin = report.values_of(each, rows, each.score)["uniform"].mean(axis=0)
    of_random = {row["environment"]: each.score(row) for row in rows if row["variant"] == modern.RANDOM}
    assert all(mean >= 2.0 * of_random[game] for game, mean in zip(each.tasks, twin, strict=True))


def test_a_random_policy_is_evaluated_as_often_as_an_agent():
    pytest.importorskip("minatar")
    returns = modern.train("MinAtar/Breakout-v1", modern.RANDOM, "", 1.0, 0)
    assert list(returns) == [str(step) for step in learning.evaluation_steps(modern.SUITE)]
    assert 0.0 < np.mean(list(returns.values())) < 2.0
