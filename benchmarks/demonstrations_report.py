"""
Report the runs of `demonstrations.py`: a table and a figure for each task, with the name of its CSV file.

    python benchmarks/demonstrations_report.py    # from docs/evidence/demonstrations.csv and demonstrations-doorkey.csv

Only reporting seeds with all arms count.
"""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from demonstrations import REPORTING, TASKS, arms_of, chosen_rates, preloaded, reporting_jobs
from report import draw_runs, p_cells, publish, table, with_interval


class Results(NamedTuple):
    """Results of an arm, each of shape (seeds,)."""

    steps: np.ndarray
    solved: np.ndarray
    score: np.ndarray


def load(name: str, rows: list[dict[str, str]]) -> tuple[list[int], dict[str, Results]]:
    """
    Load the complete seeds.

    :param name: name of the task
    :param rows: rows of its file
    :return: the complete seeds, and the results by arm
    """
    found: dict[tuple[str, ...], dict[str, str]] = {(row["arm"], row["learning_rate"], row["seed"]): row for row in rows}
    runs = {
        (run["seed"], run["arm"]): found.get(tuple(map(str, run.values())))
        for run, _ in reporting_jobs(name, chosen_rates(name, rows))
    }
    arms = arms_of(TASKS[name])
    seeds = [seed for seed in REPORTING if all(runs[seed, arm] for arm in arms)]

    def of(column: str, arm: str) -> np.ndarray:
        return np.array([float(runs[seed, arm][column]) for seed in seeds])  # type: ignore[index]

    return seeds, {arm: Results(of("steps", arm), of("solved", arm) == 1.0, of("score", arm)) for arm in arms}


def mean_cell(values: np.ndarray, digits: int) -> str:
    """Format a mean, with its interval from five runs on. Fewer runs do not show how much runs differ."""
    mean, low, high = (f"{value + 0.0:,.{digits}f}" for value in np.round(with_interval(values), digits))
    return mean if low == high or len(values) < 5 else f"{mean} [{low}, {high}]"


def report(name: str, rows: list[dict[str, str]]) -> list[str]:
    """
    Write the table.

    :param name: name of the task
    :param rows: rows of its file
    :return: the lines of the table
    """
    task, (seeds, results), rates = TASKS[name], load(name, rows), chosen_rates(name, rows)
    reference = preloaded(task)
    worse = {arm: -of.steps[:, None] for arm, of in results.items()}
    ps = p_cells({arm: (worse[arm], worse[reference]) for arm in results if arm != reference})
    lines = [
        f"{len(seeds)} of {len(REPORTING)} seeds, {seeds[0]} to {seeds[-1]}, on which nothing was chosen. A run that is not"
        f" solved counts as {task.max_steps:,} steps. p against `{reference}`, corrected for the four comparisons.",
        "",
    ]
    heading = [
        "arm",
        "learning rate",
        "solved",
        "steps until solved, mean [95% interval]",
        "steps saved, paired",
        "p (unpaired)",
        f"{task.scored} at the end",
    ]
    cells = [
        [
            arm,
            f"{rates[arm]:g}",
            f"{of.solved.sum()} of {len(seeds)}",
            mean_cell(of.steps, 0),
            "" if arm == reference else mean_cell((worse[arm] - worse[reference])[:, 0], 0),
            ps.get(arm, ""),
            mean_cell(of.score, 2 if task.solved < 1.0 else 0),
        ]
        for arm, of in results.items()
    ]
    return [*lines, *table(heading, cells)]


def draw(name: str, rows: list[dict[str, str]], path: Path) -> None:
    """Draw a dot for each run."""
    task, (_, results) = TASKS[name], load(name, rows)
    runs = {arm: (of.steps, of.solved) for arm, of in results.items()}
    draw_runs(runs, task.max_steps, f"steps until a {task.scored} of {task.solved:g}", path)


def main(arguments: list[str] | None = None) -> None:
    """Write the tables and the figures."""
    campaigns = {name: (partial(load, name), partial(report, name), partial(draw, name)) for name in TASKS}
    publish(str(__doc__), campaigns, arguments)


if __name__ == "__main__":
    main()
