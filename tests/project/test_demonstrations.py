"""The campaign on demonstrations: what each learner begins with, and a report that says what the runs say."""

import csv

import pytest

from tests.utils import ROOT, benchmark

demonstrations = benchmark("demonstrations")
report = benchmark("demonstrations_report")
EVIDENCE = ROOT / "docs" / "evidence"


@pytest.mark.parametrize("arm", demonstrations.ARMS)
def test_only_the_arm_differs_between_learners(arm):
    """The demonstrations are in the ring, beside it, or nowhere; the settings are the same."""
    n = demonstrations.expert_episodes().size()
    model = demonstrations.make_model(arm, 1e-3, 0)
    buffer = model.replay_buffer
    assert buffer.size() == (n if arm == "SAC, preloaded" else 0)
    shares = {"PERSAC, demonstrations 0.25": 0.25, "PERSAC, demonstrations 0.5": 0.5}
    if arm.startswith("PERSAC"):
        assert buffer.settings.demonstration_fraction == shares.get(arm, 0.0)
        assert len(buffer.demonstrations) == (n if arm in shares else 0)
    assert (model.learning_starts, model.batch_size) == (1_000 if arm in ("SAC", "PERSAC") else 0, 256)


def test_the_expert_solves_the_task():
    episodes = demonstrations.expert_episodes()
    n = episodes.size()
    assert episodes.dones[:n].sum() == 10 and episodes.rewards[:n].sum() / 10 > 95.0


def test_nothing_is_chosen_on_the_reporting_seeds():
    assert set(demonstrations.CHOOSING).isdisjoint(demonstrations.REPORTING)


def rows_of(n_seeds):
    """The higher rate is better for every arm, and only learners with demonstrations solve the task."""
    rows = []
    for name, _ in demonstrations.choosing_jobs():
        rows.append({**name, "steps": 5_000 if name["learning_rate"] == 1e-3 else 9_000, "solved": 1})
    for name, _ in demonstrations.reporting_jobs(demonstrations.chosen_rates(rows)):
        if name["seed"] in demonstrations.REPORTING[:n_seeds]:
            is_solved = "demonstrations" in name["arm"]
            rows.append({**name, "steps": 3_000 if is_solved else 20_000, "solved": int(is_solved)})
    return [{key: str(value) for key, value in row.items()} for row in rows]


def test_report_counts_complete_seeds_alone(tmp_path):
    rows = rows_of(6)
    text = "\n".join(report.report(rows[:-1]))
    assert text.startswith("5 seeds, 200 to 204")
    # Two groups of five without overlap: 2 of 252 ways, times three of four comparisons by Holm.
    assert "| PERSAC, demonstrations 0.25 | 0.001 | 5 of 5 | 3,000 | 0.032 |" in text
    assert "| SAC | 0.001 | 0 of 5 | 20,000 | 1.000 |" in text
    with (tmp_path / "demonstrations.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    report.main(["--out", str(tmp_path)])
    assert (tmp_path / "demonstrations.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "demonstrations.md").read_text().startswith("6 seeds")


def test_published_table_is_that_of_the_runs():
    rows = report.read(EVIDENCE / "demonstrations.csv")
    assert (EVIDENCE / "demonstrations.md").read_text() == "\n".join(report.report(rows)).rstrip() + "\n"
