"""A campaign continues after a stop, and loses no finished run."""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from sb3_per.compare import campaign


def run_missing(path, jobs, **options) -> int:
    """Run jobs in this process."""
    return campaign.run_missing(path, jobs, dict, workers=1, make_pool=ThreadPoolExecutor, **options)


def jobs(*values: int, result: int = 0) -> list:
    """List jobs whose function is `dict`, which returns its arguments."""
    return [({"seed": value}, ([("result", result)],)) for value in values]


def test_only_missing_runs_are_made(tmp_path):
    path = tmp_path / "folder" / "runs.csv"
    assert run_missing(path, jobs(0, 1, result=5)) == 2
    before = path.read_text()
    assert run_missing(path, jobs(0, 1, 2, result=6)) == 1
    assert run_missing(path, jobs(0, 1, 2, result=7)) == 0
    assert path.read_text().startswith(before)
    assert [(row["seed"], row["result"]) for row in campaign.read(path)] == [("0", "5"), ("1", "5"), ("2", "6")]


def slowly(seconds: float, values: list) -> dict:
    time.sleep(seconds)
    return dict(values)


@pytest.mark.parametrize("make_pool", [ThreadPoolExecutor, pytest.param(campaign.processes, marks=pytest.mark.slow)])
def test_a_failed_run_loses_no_finished_run(make_pool, tmp_path):
    path = tmp_path / "runs.csv"
    named = [({"seed": 0}, (0.0, [("result", 0)])), ({"seed": 1}, (0.5, 3))]  # an int is not iterable
    with pytest.raises(TypeError):
        campaign.run_missing(path, named, slowly, workers=1, make_pool=make_pool)
    assert [row["seed"] for row in campaign.read(path)] == ["0"]
    assert run_missing(path, jobs(0, 1)) == 1
    assert [row["seed"] for row in campaign.read(path)] == ["0", "1"]


def test_no_run_begins_after_the_deadline(tmp_path):
    path = tmp_path / "runs.csv"
    named = [({"seed": seed}, (0.02, [("result", 0)])) for seed in range(50)]
    n_run = campaign.run_missing(path, named, slowly, workers=1, deadline=0.0, make_pool=ThreadPoolExecutor)
    assert 1 <= n_run < 50
    assert [row["seed"] for row in campaign.read(path)] == [str(seed) for seed in range(n_run)]
    assert len(campaign.missing(path, jobs(*range(50)))) == 50 - n_run


def test_a_cut_row_runs_again_and_leaves_no_trace(tmp_path):
    """A full disk ends a write anywhere: in the last value, in the name, or before the first value."""
    whole, path = tmp_path / "whole.csv", tmp_path / "runs.csv"
    run_missing(whole, jobs(0, 1, 2, result=12345))
    lines = whole.read_text().splitlines(keepends=True)
    for n_cut in range(1, len(lines[2])):
        path.write_text("".join(lines[:2]) + lines[2][:-n_cut])
        assert [row["seed"] for row in campaign.read(path)] == ["0"]
        assert run_missing(path, jobs(0, 1, 2, result=12345)) == 2
        assert [row["result"] for row in campaign.read(path)] == ["12345"] * 3
        assert len(path.read_text().splitlines()) == 4


def test_rows_that_were_glued_to_a_cut_one_run_again_and_half_a_header_is_none(tmp_path):
    path = tmp_path / "runs.csv"
    path.write_text("seed,seconds,result\n0,1.0,5\n1,1.02,1.0,5\n3,1.0\n4,1.0,5\n")
    assert [row["seed"] for row in campaign.read(path)] == ["0", "4"]
    assert run_missing(path, jobs(0, 1, 2, 3, 4, result=5)) == 3
    path.write_text("seed,seco")
    assert run_missing(path, jobs(0, result=5)) == 1
    assert [(row["seed"], row["result"]) for row in campaign.read(path)] == [("0", "5")]
