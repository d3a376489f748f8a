"""
Add runs that another machine has made to ``data/``. The file has the name of its campaign. Runs that are there already are not
replaced.

    python -m study.merge elsewhere/wall-clock.csv
"""

import sys
from pathlib import Path

from sb3_per.compare.campaign import append, read

from .__main__ import CAMPAIGNS
from .campaign import ROOT, Row


def name_of(row: Row) -> tuple[str, ...]:
    """Return the name of a run: the columns before its seconds."""
    columns = list(row)
    return tuple(row[column] for column in columns[: columns.index("seconds")])


def merge(path: Path, out: Path = ROOT) -> tuple[int, int]:
    """
    Add the rows of a file to the file with the same name in ``data/``.

    :param path: path of a CSV file
    :param out: folder with ``data/``
    :return: number of rows that were added, and of those that were there
    """
    if path.stem not in CAMPAIGNS:
        raise SystemExit(f"{path} has the name of no campaign: {', '.join(CAMPAIGNS)}")
    ours, settings = out / "data" / path.name, CAMPAIGNS[path.stem].fingerprint
    there, rows = read(ours), read(path)
    if not rows:
        raise SystemExit(f"{path} has no runs")
    if "seconds" not in rows[0] or (there and list(there[0]) != list(rows[0])):
        raise SystemExit(f"{path} has other columns than {ours}: {', '.join(rows[0])}")
    if others := {row["settings"] for row in rows if "settings" in row} - {settings}:
        raise SystemExit(f"{path} has runs of the settings {', '.join(sorted(others))}, and the campaign has {settings}")
    names, n_before = {name_of(row) for row in there}, len(there)
    for row in rows:
        if name_of(row) not in names:
            append(ours, row)
            names.add(name_of(row))
    n_added = len(names) - n_before
    return n_added, len(rows) - n_added


if __name__ == "__main__":
    for argument in sys.argv[1:] or sys.exit(__doc__):
        n_added, n_there = merge(Path(argument))
        print(f"{argument}: {n_added} runs added, {n_there} were there")
