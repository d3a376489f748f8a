"""
Report the runs of `dose_response.py`: write ``dose-response.md`` and ``dose-response.png``.

    python benchmarks/dose_report.py    # from docs/evidence/dose-response.csv

Only complete reporting seeds count, with all sizes and arms. Means over seeds are geometric.
"""

import argparse
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from dose_response import ARMS, MAX_UPDATES, OUT, REPORTING, SIZES, chosen_rates, reporting_jobs
from figures import INK, LOOKS, figure_of, save
from matplotlib.lines import Line2D
from report import SAMPLES, p_cell, table

from sb3_per.compare.campaign import read
from sb3_per.compare.statistics import holm

TWIN = "uniform"
# Shuffled control of each arm that has one.
CONTROLS = {arm: f"shuffled, {arm}" for arm in ARMS if f"shuffled, {arm}" in ARMS}


def load(rows: list[dict[str, str]]) -> tuple[list[int], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """
    Load the complete seeds.

    :param rows: rows of the file
    :return: the complete seeds; by arm the updates, and whether they were enough, both of shape (seeds, sizes)
    """
    found = {(row["n_states"], row["arm"], row["learning_rate"], row["seed"]): row for row in rows}
    runs = {
        (name["seed"], name["n_states"], name["arm"]): found.get(tuple(map(str, name.values())))
        for name, _ in reporting_jobs(chosen_rates(rows))
    }
    seeds = [seed for seed in REPORTING if all(runs[seed, n, arm] for n, arm in product(SIZES, ARMS))]

    def of(column: str, arm: str) -> np.ndarray:
        return np.array([[float(runs[seed, n, arm][column]) for n in SIZES] for seed in seeds])  # type: ignore[index]

    return seeds, {arm: of("updates", arm) for arm in ARMS}, {arm: of("solved", arm) == 1 for arm in ARMS}


def with_interval(values: np.ndarray) -> np.ndarray:
    """
    Compute a mean and its interval.

    :param values: values of the seeds, shape (seeds, ...)
    :return: their mean and the ends of its 95% bootstrap interval, shape (3, ...)
    """
    picked = np.random.default_rng(0).integers(len(values), size=(SAMPLES, len(values)))
    return np.stack([values.mean(axis=0), *np.percentile(values[picked].mean(axis=1), [2.5, 97.5], axis=0)])


def sign_flip_p(values: np.ndarray) -> float:
    """
    Test whether differences have mean 0.

    :param values: differences, one for each seed
    :return: exact two-sided p that their mean is 0
    """
    signs = np.array(list(product((-1, 1), repeat=len(values))))
    return float(np.mean(np.abs(signs @ values) >= abs(values.sum()) - 1e-9))


def slopes(gains: np.ndarray) -> np.ndarray:
    """
    Fit the growth of the gain.

    :param gains: logarithms of the gain, shape (seeds, sizes)
    :return: slope over n for each seed, by least squares
    """
    return np.polyfit(SIZES, gains.T, 1)[0]


def factor(estimate: np.ndarray, digits: int = 2) -> str:
    """Format a mean of logarithms and its interval as a factor."""
    value, low, high = (f"{each:,.{digits}f}" for each in np.exp(estimate))
    return value if low == high else f"{value} [{low}, {high}]"


def report(rows: list[dict[str, str]]) -> list[str]:
    """
    Write the tables.

    :param rows: rows of the file
    :return: lines of Markdown
    """
    seeds, updates, solved = load(rows)
    logs = {arm: np.log(values) for arm, values in updates.items()}
    heading = [f"n = {n}" for n in SIZES]
    lines = [f"{len(seeds)} seeds, {seeds[0]} to {seeds[-1]}, on which nothing was chosen.", ""]

    lines += [
        f"Updates until solved, geometric mean [95% interval]; in brackets, runs that had not after {MAX_UPDATES:,}:",
        "",
    ]
    rates = chosen_rates(rows)
    table_rows = []
    for arm in ARMS:
        cells = []
        for i in range(len(SIZES)):
            n_capped = int((~solved[arm][:, i]).sum())
            cells.append(factor(with_interval(logs[arm][:, i]), 0) + (f" ({n_capped})" if n_capped else ""))
        table_rows.append([arm, *cells])
    lines += table(["arm", *heading], table_rows)

    gains = {arm: logs[TWIN] - logs[arm] for arm in ARMS if arm != TWIN}
    p_values: dict[Any, float] = holm({(arm, i): sign_flip_p(gains[arm][:, i]) for arm in gains for i in range(len(SIZES))})
    lines += ["Gain: updates of the uniform twin over those of the arm, paired by seed; p in brackets:", ""]
    lines += table(
        ["arm", *heading],
        [
            [arm, *(f"{factor(with_interval(gains[arm][:, i]))} ({p_cell(p_values, (arm, i))})" for i in range(len(SIZES)))]
            for arm in gains
        ],
    )

    growth = {(arm, "the uniform twin"): slopes(gains[arm]) for arm in gains}
    growth |= {(arm, f"`{control}`"): slopes(gains[arm] - gains[control]) for arm, control in CONTROLS.items()}
    p_values = holm({key: sign_flip_p(values) for key, values in growth.items()})
    lines += ["Primary endpoint, how the gain grows: factor for each doubling of the episodes for one success:", ""]
    lines += table(
        ["arm", "gain over", "factor [95% interval]", "p"],
        [
            [arm, other, factor(with_interval(values), 3), p_cell(p_values, (arm, other))]
            for (arm, other), values in growth.items()
        ],
    )
    lines += ["Learning rates, chosen on other seeds:", ""]
    largest = max(n for n, _ in rates)
    lines += table(["arm", *heading], [[arm, *(f"{rates[min(n, largest), arm]:g}" for n in SIZES)] for arm in ARMS])
    return lines


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """Draw a line and a band for each arm, and an arrow where a run was stopped before it had solved the task."""
    seeds, updates, solved = load(rows)
    figure = figure_of(5.2)
    axes = figure.subplots()
    episodes = 2.0 ** np.array(SIZES)
    for arm in ARMS:
        is_control = arm.startswith("shuffled")
        color, _, marker = LOOKS[arm.removeprefix("shuffled, ")]
        middle, low, high = np.exp(with_interval(np.log(updates[arm])))
        line = dict(linestyle="--", markerfacecolor="none", linewidth=1.5) if is_control else dict(linestyle="-")
        axes.plot(episodes, middle, color=color, marker=marker, markersize=5, label=arm, **line)
        axes.fill_between(episodes, low, high, color=color, alpha=0.08 if is_control else 0.18, linewidth=0)
        for i in np.flatnonzero(~solved[arm].all(axis=0)):
            axes.annotate(
                "", (episodes[i], 1.22 * middle[i]), (episodes[i], middle[i]), arrowprops=dict(arrowstyle="->", color=color)
            )
    axes.axhline(MAX_UPDATES, color=INK, linestyle=":", linewidth=1)
    axes.text(episodes[0], 0.95 * MAX_UPDATES, "runs stop here", va="top", color=INK)
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="random episodes for one success, 2ⁿ", ylabel=f"updates until solved, {len(seeds)} seeds")
    axes.set_xticks(episodes, [f"{int(count):,}" for count in episodes])
    axes.set_xticks([], minor=True)
    axes.set_yticks([300, 1_000, 3_000, 10_000, 30_000], ["300", "1,000", "3,000", "10,000", "30,000"])
    axes.set_yticks([], minor=True)
    axes.set_ylabel(f"worse \N{RIGHTWARDS ARROW}    {axes.get_ylabel()}")
    handles, labels = axes.get_legend_handles_labels()
    if not all(np.all(each) for each in solved.values()):
        handles.append(Line2D([], [], color=INK, marker=r"$\uparrow$", linestyle=""))
        labels.append("a run was stopped")
    figure.legend(handles, labels, loc="outside lower center", ncols=3)
    save(figure, path)


def main(arguments: list[str] | None = None) -> None:
    """Write the tables and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of dose-response.csv, .md and .png")
    args = parser.parse_args(arguments)
    rows = read(args.out / "dose-response.csv")
    if not rows or not load(rows)[0]:
        print("dose-response: no complete seed")
        return
    (args.out / "dose-response.md").write_text("\n".join(report(rows)).rstrip() + "\n")
    draw(rows, args.out / "dose-response.png")
    print(args.out / "dose-response.md")


if __name__ == "__main__":
    main()
