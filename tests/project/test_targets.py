"""Targets of the benchmarks: each published row has one, and none moves without a row in the table of changed targets."""

import hashlib
import json

import pytest

from tests.helpers.project import ROOT, benchmark

figures, targets, timing = benchmark("figures"), benchmark("targets"), benchmark("timing")

# Of the first targets, which never change. A new row changes it, too: run the test and take the value of its message.
FIRST_TARGETS = "ccf49998e7b5"


def test_a_target_moves_only_by_a_row_in_the_table_of_changed_targets():
    """The first targets are those of this digest, so a number that is changed in the list fails here."""
    text = json.dumps(targets.FIRST, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    assert digest == FIRST_TARGETS, "FIRST is never changed but by new rows: a target that moves is one of CHANGES"


def test_the_page_shows_each_change_once():
    page = (ROOT / "docs" / "results.md").read_text()
    table = page.partition("### Targets that were changed")[2].partition("<!--figure changed targets-->")[2]
    lines = [line for line in table.partition("<!--/figure-->")[0].splitlines() if line.startswith("| ")][1:]
    assert len(lines) == len(targets.CHANGES) > 5
    for line, change in zip(lines, targets.CHANGES, strict=True):
        cells = figures.cells(line)
        assert cells[:2] == [change.benchmark, change.row] and cells[4:] == [change.date, change.reason]
        assert float(cells[2]) != float(cells[3]) == change.new


def test_changes_are_of_rows_with_a_target_and_say_why_and_when():
    for change in targets.CHANGES:
        assert change.row in targets.FIRST[change.benchmark]
        assert change.reason.split(":")[0] in ("looser", "stricter") and len(change.reason) > 20
        assert change.date.count("-") == 2


@pytest.mark.parametrize("change", targets.CHANGES, ids=lambda change: change.row)
def test_a_change_says_its_direction(change):
    old = targets.FIRST[change.benchmark][change.row]
    higher_is_better = change.benchmark == "recipes"
    is_looser = change.new < old if higher_is_better else change.new > old
    assert change.reason.startswith("looser" if is_looser else "stricter")


def test_the_last_change_is_the_target(monkeypatch):
    moved = targets.Change("sbx", "sac 1 SB3 cpu", 0.7, "2026-12-01", "looser: for this test, and for it alone")
    monkeypatch.setattr(targets, "CHANGES", (*targets.CHANGES, moved))
    assert targets.target_of("sbx", "sac 1 SB3 cpu") == 0.7
    assert targets.target_of("sbx", "sac 8 SB3 cpu") == targets.FIRST["sbx"]["sac 8 SB3 cpu"]
    assert "| sbx | sac 1 SB3 cpu | 0.55 | 0.7 | 2026-12-01 |" in figures.changed()
    with pytest.raises(KeyError):
        targets.target_of("sbx", "nothing")


@pytest.mark.parametrize("name", figures.BENCHMARKS)
def test_every_published_row_has_a_target_and_stands_on_results_if_it_misses_it(name):
    page = (ROOT / "docs" / "results.md").read_text()
    rows = timing.read_rows(ROOT / "docs" / "benchmarks" / f"{name}.json")
    assert rows
    for key, row in rows.items():
        target = targets.target_of(name.rpartition("/")[2], key)
        assert (figures.missed_line(name, row._asdict(), target) in page) == (row.figure > target), key


def test_a_missed_row_names_the_machine_and_the_range():
    row = dict(what="step, sbx.PERSAC", against="SBX's SAC on cuda", figure=1.5, runs=2, low=1.25, high=1.75)
    line = "| step, sb3_per.sbx.PERSAC | SBX's SAC on an H200 | 1.5 (1.25 to 1.75 in 2 runs) | 1 |"
    assert figures.missed_line("h200/sbx", row, 1.0) == line


def test_every_recipe_has_a_target():
    assert set(benchmark("recipes").RECIPES) == set(targets.FIRST["recipes"])


def test_several_runs_become_their_mean_and_range():
    runs = [timing.Row("step (5 steps)", "SB3", figure, 1.0, seconds) for figure, seconds in ((0.5, 2.0), (0.6, 4.0))]
    row = timing.mean_of_runs(runs)
    assert row == timing.Row("step", "SB3", pytest.approx(0.55), 1.0, 3.0, 2, 0.5, 0.6)
    assert timing.as_line(row, 0.55) == "| step | SB3 | 1,000,000.0 µs | 3.0 s | 0.55 (0.5 to 0.6 in 2 runs) | 0.55 | met |"
    assert "**missed**" in timing.as_line(row, 0.54)


def test_runs_are_fresh_processes_with_the_same_options(monkeypatch, tmp_path, capsys):
    """Each writes its own figures; none is given the folder of the result."""
    seen, figures_of_runs = [], iter((0.4, 0.6))

    def run(command, check):
        seen.append(command)
        folder = command[command.index("--out") + 1]
        row = timing.Row("step", "SB3", next(figures_of_runs))._asdict()
        (tmp_path.__class__(folder) / "sbx.json").write_text(json.dumps({"machine": "this", "rows": {"sac 1 SB3 cpu": row}}))

    monkeypatch.setattr(timing.subprocess, "run", run)
    args = timing.options("", "").parse_args(["--runs", "2", "--only", "sac", "--quick", "--out", str(tmp_path)])
    timing.publish(args, iter(()), "this", "sbx")
    assert len(seen) == 2 and all(command[2:6] == ["--only", "sac", "--device", "cpu"] for command in seen)
    assert all("--quick" in command and str(tmp_path) not in command and "--runs" not in command for command in seen)
    assert timing.read_rows(tmp_path / "sbx.json")["sac 1 SB3 cpu"].figure == pytest.approx(0.5)
    assert "0.5 (0.4 to 0.6 in 2 runs)" in (tmp_path / "sbx.md").read_text()
