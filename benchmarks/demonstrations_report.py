"""
What the runs of `demonstrations.py` say: ``demonstrations.md`` and ``demonstrations.png``.

    python benchmarks/demonstrations_report.py    # from docs/evidence/demonstrations.csv

Only the reporting seeds that are complete count: all arms.
"""

import argparse
from pathlib import Path

import numpy as np
from demonstrations import ARMS, MAX_STEPS, OUT, REPORTING, SOLVED, chosen_rates, reporting_jobs
from figures import INK, figure_of, looks, save, thousands
from report import SAMPLES, p_cell, table

from sb3_per.compare.campaign import read
from sb3_per.compare.statistics import holm, permutation_p

REFERENCE = "SAC, preloaded"
# What an arm is in the figures.
ROLES = {
    "SAC": "stock",
    "SAC, preloaded": "uniform",
    "PERSAC": "defaults",
    "PERSAC, demonstrations 0.25": "rank",
    "PERSAC, demonstrations 0.5": "LAP",
}


def load(rows: list[dict[str, str]]) -> tuple[list[int], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """
    :param rows: of the file
    :return: the complete seeds; by arm the steps, and whether the task was solved, both of shape (seeds,)
    """
    found = {(row["arm"], row["learning_rate"], row["seed"]): row for row in rows}
    runs = {
        (name["seed"], name["arm"]): found.get(tuple(map(str, name.values())))
        for name, _ in reporting_jobs(chosen_rates(rows))
    }
    seeds = [seed for seed in REPORTING if all(runs[seed, arm] for arm in ARMS)]

    def of(column: str, arm: str) -> np.ndarray:
        return np.array([int(runs[seed, arm][column]) for seed in seeds])  # type: ignore[index]

    return seeds, {arm: of("steps", arm) for arm in ARMS}, {arm: of("solved", arm) == 1 for arm in ARMS}


def interval(steps: np.ndarray) -> tuple[float, float]:
    """95% bootstrap interval of the mean."""
    picked = np.random.default_rng(0).integers(len(steps), size=(SAMPLES, len(steps)))
    low, high = np.percentile(steps[picked].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def report(rows: list[dict[str, str]]) -> list[str]:
    """
    :param rows: of the file
    :return: the table
    """
    seeds, steps, solved = load(rows)
    rates = chosen_rates(rows)
    others = [arm for arm in ARMS if arm != REFERENCE]
    p_values = holm({arm: permutation_p(-steps[arm][:, None], -steps[REFERENCE][:, None]) for arm in others})
    lines = [
        f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}, on which nothing was chosen. A run that is not solved counts as",
        "",
    ]
    lines[0] += f" {MAX_STEPS:,} steps. p against `{REFERENCE}`, corrected for the four comparisons."
    cells = []
    for arm in ARMS:
        low, high = interval(steps[arm])
        text = f"{steps[arm].mean():,.0f}" + ("" if low == high else f" [{low:,.0f}, {high:,.0f}]")
        cells.append([arm, f"{rates[arm]:g}", f"{solved[arm].sum()} of {len(seeds)}", text, p_cell(p_values, arm)])
    heading = ["arm", "learning rate", "solved", "steps until solved, mean [95% interval]", "p"]
    return [*lines, *table(heading, cells)]


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """A dot a run, hollow where it was not solved."""
    seeds, steps, solved = load(rows)
    style = looks({arm: ROLES[arm] for arm in ARMS})
    figure = figure_of(2.9)
    axes = figure.subplots()
    for y, arm in enumerate(reversed(list(ARMS))):
        offsets = np.linspace(-0.25, 0.25, len(seeds))
        for is_solved in (True, False):
            chosen = solved[arm] == is_solved
            color = style[arm]["color"]
            face = color if is_solved else "none"
            axes.scatter(steps[arm][chosen], y + offsets[chosen], s=36, marker="o", edgecolors=color, facecolors=face)
    axes.set_yticks(range(len(ARMS)), list(reversed(list(ARMS))))
    axes.set_xlim(0, 1.04 * MAX_STEPS)
    label = f"steps until a return of {SOLVED:g}; hollow: not in {MAX_STEPS:,}; worse \N{RIGHTWARDS ARROW}"
    figure.supxlabel(label, fontsize="medium")
    axes.tick_params(axis="y", length=0)
    axes.axvline(MAX_STEPS, color=INK, linestyle=":", linewidth=1)
    thousands(axes.xaxis)
    save(figure, path)


def main(arguments: list[str] | None = None) -> None:
    """Write the table and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of demonstrations.csv, .md and .png")
    args = parser.parse_args(arguments)
    rows = read(args.out / "demonstrations.csv")
    if not rows or not load(rows)[0]:
        print("demonstrations: no complete seed")
        return
    (args.out / "demonstrations.md").write_text("\n".join(report(rows)).rstrip() + "\n")
    draw(rows, args.out / "demonstrations.png")
    print(args.out / "demonstrations.md")


if __name__ == "__main__":
    main()
