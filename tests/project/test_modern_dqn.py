"""The MinAtar campaign with a modern DQN: its arms, and a report on complete seeds and learned games."""

import csv

import numpy as np
import pytest

from sb3_per.compare.campaign import read
from tests.utils import ROOT, benchmark

campaign = benchmark("modern_dqn")
report = benchmark("modern_dqn_report")
EVIDENCE = ROOT / "docs" / "evidence"

GAIN = {"uniform": 1.0, "defaults": 1.5, "LAP": 1.0}


def row_of(name, value):
    columns = {str(step): value for step in campaign.evaluation_steps(campaign.SUITE)}
    return {key: str(part) for key, part in {**name, "seconds": 1.0, **columns}.items()}


def rows_of(n_seeds):
    """Make rows in which the higher rate is better, the defaults score half as much again, and no arm learns Seaquest."""
    rng = np.random.default_rng(0)
    rows = [row_of(name, 2.0) for name, _ in campaign.random_jobs()]
    for name, (_, _, variant, _) in campaign.choosing_jobs():
        rows.append(row_of(name, float(variant.partition(" @ ")[2])))
    for name, (_, game, variant, seed) in campaign.reporting_jobs(dict.fromkeys(campaign.ARMS, 2.0)):
        if seed in campaign.REPORTING[:n_seeds]:
            scale = 3.0 if "Seaquest" in game else 10.0
            rows.append(row_of(name, scale * GAIN[variant.partition(" @ ")[0]] * (1 + 0.01 * rng.random())))
    return rows


def test_arms_differ_only_in_the_draw():
    for arm, variant in campaign.ARMS.items():
        own = dict(variant.settings)
        assert own.pop("double_q") is True and own.pop("n_steps") == 3
        assert list(own) == ["replay_buffer_kwargs"] and variant.algorithm == "PERDQN", arm


def test_choosing_and_reporting_seeds_are_different():
    assert set(campaign.CHOOSING).isdisjoint(campaign.REPORTING)
    assert campaign.chosen_rates(rows_of(1)) == dict.fromkeys(campaign.ARMS, 2.0)


def test_the_report_counts_only_complete_seeds_and_learned_games(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark("report"), "SAMPLES", 50)
    rows = rows_of(4)
    text = "\n".join(report.report(rows[:-1]))
    assert text.startswith("3 seeds, 200 to 202, on which nothing was chosen, in 4 games.")
    # In each of four games one of 20 ways, both tails, times two arms.
    assert "| defaults | 2 | 1.50 | 1.00 | < 0.001 |" in text
    assert "| MinAtar Seaquest | 2.00 | 3.0" in text and text.count("| no |") == 1
    with (tmp_path / "modern-dqn.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    report.main(["--out", str(tmp_path)])
    assert (tmp_path / "modern-dqn.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "modern-dqn.md").read_text().startswith("4 seeds")


def test_a_random_policy_is_evaluated_as_often_as_an_agent():
    pytest.importorskip("minatar")
    returns = campaign.run(campaign.SUITE, "MinAtar/Breakout-v1", campaign.RANDOM, 0)
    assert list(returns) == [str(step) for step in campaign.evaluation_steps(campaign.SUITE)]
    assert 0.0 < np.mean(list(returns.values())) < 2.0


def test_the_published_table_follows_from_the_runs():
    rows = read(EVIDENCE / "modern-dqn.csv")
    assert (EVIDENCE / "modern-dqn.md").read_text() == "\n".join(report.report(rows)).rstrip() + "\n"
