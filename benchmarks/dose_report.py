"""
Report the runs of `dose_response.py`: write ``dose-response.md`` and ``dose-response.png``.

    python benchmarks/dose_report.py    # from docs/evidence/dose-response.csv

Only complete reporting seeds count, with all sizes and arms. Means over seeds are geometric.
"""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from dose_response import ARMS, MAX_UPDATES, PERIOD, REPORTING, SIZES, chosen_rates, reporting_jobs
from figures import INK, LOOKS, STYLE, figure_of, save
from matplotlib import style
from report import p_cell, publish, table, with_interval

from sb3_per.compare.statistics import holm, paired_p

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


def gains_of(rows: list[dict[str, str]]) -> tuple[dict[str, np.ndarray], dict[Any, float]]:
    """
    Compute the gains over the uniform twin.

    :param rows: rows of the file
    :return: logarithms of the gain by arm, shape (seeds, sizes); p of each arm and number of the size, with Holm's correction
    """
    logs = {arm: np.log(values) for arm, values in load(rows)[1].items()}
    gains = {arm: logs[TWIN] - logs[arm] for arm in ARMS if arm != TWIN}
    return gains, holm({(arm, i): paired_p(gains[arm][:, i]) for arm in gains for i in range(len(SIZES))})


def slopes(gains: np.ndarray, first: int = 0) -> np.ndarray:
    """
    Fit the growth of the gain.

    :param gains: logarithms of the gain, shape (seeds, sizes)
    :param first: number of the size to begin with
    :return: slope over n for each seed, by least squares
    """
    return np.polyfit(SIZES[first:], gains[:, first:].T, 1)[0]


def floor_of(n_states: int) -> int:
    """
    Compute the fewest updates that a run can need. The target network is copied every 50 updates, and a value has to pass
    through one copy for each state.
    """
    return PERIOD * n_states


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

    gains, p_values = gains_of(rows)
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
    p_values = holm({key: paired_p(values) for key, values in growth.items()})
    lines += ["Primary endpoint, how the gain grows: factor for each doubling of the episodes for one success:", ""]
    lines += table(
        ["arm", "gain over", "factor [95% interval]", "p"],
        [
            [arm, other, factor(with_interval(values), 3), p_cell(p_values, (arm, other))]
            for (arm, other), values in growth.items()
        ],
    )
    n_on_floor = {arm: (each == [floor_of(n) for n in SIZES]).sum(axis=0) for arm, each in updates.items()}
    lines += [f"Runs that ended at the first possible check, {PERIOD} n updates, of {len(seeds)}:", ""]
    lines += table(["arm", *heading], [[arm, *map(str, counts)] for arm, counts in n_on_floor.items()])
    undeclared = {
        f"defaults over uniform, from n = {SIZES[2]} on": slopes(gains["defaults"], 2),
        "no weights over defaults": slopes(gains["no weights"] - gains["defaults"]),
    }
    lines += ["Growth of two gains that were not declared before the runs, without a correction:", ""]
    cells = [[name, factor(with_interval(each), 3), p_cell({"": paired_p(each)}, "")] for name, each in undeclared.items()]
    lines += table(["gain", "factor [95% interval]", "p"], cells)
    lines += ["Learning rates, chosen on other seeds:", ""]
    largest = max(n for n, _ in rates)
    lines += table(["arm", *heading], [[arm, *(f"{rates[min(n, largest), arm]:g}" for n in SIZES)] for arm in ARMS])
    return lines


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """
    Draw a line and a band for each arm, with the number of its stopped runs, and the fewest updates that a run can need. The
    text can be read where the figure is 360 pixels wide.
    """
    seeds, updates, solved = load(rows)
    with style.context([STYLE, {"font.size": 16}]):
        figure = figure_of(7.8)
        axes = figure.subplots()
        episodes = 2.0 ** np.array(SIZES)
        for arm in ARMS:
            is_control = arm.startswith("shuffled")
            color, _, marker = LOOKS[arm.removeprefix("shuffled, ")]
            middle, low, high = np.exp(with_interval(np.log(updates[arm])))
            line = dict(linestyle="--", markerfacecolor="none", linewidth=1.5) if is_control else dict(linestyle="-")
            axes.plot(episodes, middle, color=color, marker=marker, markersize=6, label=arm, **line)
            axes.fill_between(episodes, low, high, color=color, alpha=0.06 if is_control else 0.18, linewidth=0)
        # The numbers stand one below the other, in the order of the lines.
        n_stopped = {arm: int((~solved[arm][:, -1]).sum()) for arm in ARMS}
        order = sorted((arm for arm in ARMS if n_stopped[arm]), key=lambda arm: -updates[arm][:, -1].mean())
        for place, arm in enumerate(order):
            color = LOOKS[arm.removeprefix("shuffled, ")][0]
            axes.annotate(str(n_stopped[arm]), (1.25 * episodes[-1], MAX_UPDATES * 0.72**place), color=color, va="center")
        if order:
            axes.annotate(f"stopped, of {len(seeds)}", (1.6 * episodes[-1], 1.3 * MAX_UPDATES), ha="right", va="bottom")
        floor = [floor_of(n) for n in SIZES]
        axes.fill_between(episodes, 0.8 * min(floor), floor, color=INK, alpha=0.25, linewidth=0)
        axes.annotate("no run can end here", (episodes[-1], 1.1 * min(floor)), ha="right", color=INK)
        axes.axhline(MAX_UPDATES, color=INK, linestyle=":", linewidth=1)
        axes.set(
            xscale="log", yscale="log", ylim=(0.8 * min(floor), 2.2 * MAX_UPDATES), xlim=(0.8 * episodes[0], 2 * episodes[-1])
        )
        axes.set(xlabel="random episodes for one success", ylabel="updates until solved")
        axes.set_xticks(episodes, [f"{int(count):,}" for count in episodes], rotation=30)
        axes.set_xticks([], minor=True)
        axes.set_yticks([300, 1_000, 3_000, 10_000, 30_000], ["300", "1,000", "3,000", "10,000", "30,000"])
        axes.set_yticks([], minor=True)
        axes.set_ylabel(f"{axes.get_ylabel()}\nworse \N{RIGHTWARDS ARROW}")
        figure.legend(loc="outside lower center", ncols=2)
        save(figure, path)


def main(arguments: list[str] | None = None) -> None:
    """Write the tables and the figures."""
    publish(str(__doc__), {"dose-response": (load, report, draw)}, arguments)


if __name__ == "__main__":
    main()
