"""Runs of another machine: added once, never in place of others, and refused where they are of other settings."""

import pytest

from sb3_per.compare.campaign import append, read
from study import campaign, merge, wall_clock


def row_of(seed: int, returns: float, **changes) -> dict:
    name, _ = campaign.job(wall_clock.CAMPAIGN, "ReacherHard", "uniform, 1 a step", "", 1e-3, seed)
    return {**name, "seconds": 60.0, "250": returns, **changes}


def write(path, *rows):
    path.parent.mkdir(exist_ok=True)
    for row in rows:
        append(path, row)
    return path


def test_runs_that_are_lacking_are_added_and_others_stay(out, tmp_path):
    ours = write(out / "data" / "wall-clock.csv", row_of(600, 1.0))
    theirs = write(tmp_path / "elsewhere" / "wall-clock.csv", row_of(600, 2.0), row_of(601, 3.0))
    assert merge.merge(theirs, out) == (1, 1)
    assert [(row["seed"], row["250"]) for row in read(ours)] == [("600", "1.0"), ("601", "3.0")]
    assert merge.merge(theirs, out) == (0, 2) and len(read(ours)) == 2


def test_the_first_runs_make_the_file(out, tmp_path):
    theirs = write(tmp_path / "elsewhere" / "wall-clock.csv", row_of(600, 2.0))
    assert merge.merge(theirs, out) == (1, 0)
    assert (out / "data" / "wall-clock.csv").read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("wall-clock", {"settings": "abc"}, "runs of the settings abc, and the campaign has"),
        ("wall-clock", {"more": 1}, "has other columns than"),
        ("something", {}, "has the name of no campaign"),
    ],
)
def test_runs_that_do_not_belong_are_refused(name, changes, message, out, tmp_path):
    ours = write(out / "data" / "wall-clock.csv", row_of(600, 1.0))
    theirs = write(tmp_path / "elsewhere" / f"{name}.csv", row_of(601, 2.0, **changes))
    with pytest.raises(SystemExit, match=message):
        merge.merge(theirs, out)
    assert len(read(ours)) == 1


def test_a_file_without_runs_is_refused(out, tmp_path):
    with pytest.raises(SystemExit, match="has no runs"):
        merge.merge(tmp_path / "wall-clock.csv", out)
