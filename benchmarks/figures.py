"""
Fill the figures that README and documentation quote, and the tables of docs/benchmarks, from the files of the measurements and
of the study.

    python benchmarks/figures.py            # fill them in: make figures
    python benchmarks/figures.py --check    # say what would change, and fail if anything would

A quoted figure stands between two comments, which a reader does not see: ``<!--figure draw less-->29%<!--/figure-->``.
"""

import argparse
import functools
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import targets
from timing import tables_of

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Files in docs/benchmarks that have rows.
BENCHMARKS = ("speed", "sbx", "distributed", "h100/speed", "h100/sbx", "h200/speed", "h200/sbx")
_MARKED = re.compile(r"<!--figure ([^>]+?)-->(.*?)<!--/figure-->", re.DOTALL)


@functools.cache
def measured(name: str) -> dict[str, dict[str, Any]]:
    """
    Read the rows of a benchmark.

    :param name: name of a file in ``docs/benchmarks``, without its ending
    :return: rows by their keys
    """
    rows: dict[str, dict[str, Any]] = json.loads((ROOT / "docs" / "benchmarks" / f"{name}.json").read_text())["rows"]
    return rows


def ratio(name: str, row: str) -> float:
    """
    Look up the figure of a benchmark.

    :param name: name of a file in ``docs/benchmarks``, without its ending
    :param row: key of a row
    :return: our time divided by theirs, or what else the row holds
    """
    figure: float = measured(name)[row]["figure"]
    return figure


def less(name: str, row: str) -> str:
    """Say how much less time a row takes, in percent; the parameters are those of :func:`ratio`."""
    return f"{100 * (1 - ratio(name, row)):.0f}%"


def gpu_costs() -> str:
    """Make a table of the milliseconds of a gradient step, of PyTorch and compiled, on a CPU and on a GPU."""
    lines = ["| gradient step of | CPU | GPU | GPU, eight in a call |", "|---|---|---|---|"]
    for name in ("SAC", "TD3", "DQN"):
        one, eight = (f"{name.lower()} {n} sb3_per" for n in (1, 8))
        rows = measured("sbx")[f"{one} cpu"], *(measured("h100/sbx")[f"{row} cuda"] for row in (one, eight))
        for label, side in ((f"`PER{name}`", "theirs"), (f"`sb3_per.sbx.PER{name}`", "ours")):
            lines.append(f"| {label} | {' | '.join(f'{1e3 * row[side]:.1f} ms' for row in rows)} |")
    return "\n\n" + "\n".join(lines) + "\n\n"


def range_less(name: str, row: str) -> str:
    """Say how much less time a row takes, in percent, from the run with the least to the run with the most."""
    low, high = (100 * (1 - measured(name)[row][end]) for end in ("high", "low"))
    return f"{low:.0f}% to {high:.0f}%"


def more(name: str, row: str) -> str:
    """Say how much more time a row takes, in percent; the parameters are those of :func:`ratio`."""
    return f"{100 * (ratio(name, row) - 1):.0f}%"


def times(name: str, row: str) -> str:
    """Say how many times as long a row takes; the parameters are those of :func:`ratio`."""
    return f"{ratio(name, row):.2g}"


def missed_line(name: str, row: dict[str, Any], target: float) -> str:
    """
    Write a row that misses its target.

    :param name: name of its file in ``docs/benchmarks``, without its ending
    :param row: the row
    :param target: its target
    :return: a line of a table
    """
    what = row["what"].replace("sbx.", "sb3_per.sbx.")
    against = row["against"].replace("on cuda", f"on an {name.partition('/')[0].upper()}")
    return f"| {what} | {against} | {with_range(row)} | {target:g} |"


def with_range(row: dict[str, Any]) -> str:
    """Write the figure of a row, and beside the mean of several runs their range."""
    figure = f"{row['figure']:.3g}"
    if row.get("runs", 1) > 1:
        figure += f" ({row['low']:.3g} to {row['high']:.3g} in {row['runs']} runs)"
    return figure


def missed() -> str:
    """Make a table of the targets that are missed."""
    lines = ["| what | compared with | figure | target |", "|---|---|---|---|"]
    for name in BENCHMARKS:
        for key, row in measured(name).items():
            target = targets.target_of(name.rpartition("/")[2], key)
            if row["figure"] > target:
                lines.append(missed_line(name, row, target))
    return "\n\n" + "\n".join(lines) + "\n\n"


def class_costs() -> str:
    """Make a table of what a gradient step of our classes takes, on a CPU and on a GPU."""
    kinds = tuple((name, n) for name in ("SAC", "TD3", "DQN") for n in (1, 8))
    rows = [(f"`PER{name}`", f"SB3's {name}", "speed", f"step {name.lower()}") for name in ("SAC", "TD3", "DQN")]
    for rival in ("SB3", "SBX"):
        for name, n in kinds if rival == "SB3" else kinds[::2]:
            what = f"`sb3_per.sbx.PER{name}`" + ", eight in a call" * (n == 8)
            rows.append((what, f"{rival}'s {name}", "sbx", f"{name.lower()} {n} {rival}"))
    lines = ["| gradient step of | compared with | on a CPU | on an H100 |", "|---|---|---|---|"]
    for what, against, file, key in rows:
        cpu, gpu = ratio(file, f"{key} cpu"), ratio(f"h100/{file}", f"{key} cuda")
        lines.append(f"| {what} | {against} | {cpu:.2f} | {gpu:.2f} |")
    return "\n\n" + "\n".join(lines) + "\n\n"


def changed() -> str:
    """Make a table of the targets that were moved."""
    lines = ["| benchmark | row | old target | new target | date | why |", "|---|---|---|---|---|---|"]
    now = {(name, row): first for name, rows in targets.FIRST.items() for row, first in rows.items()}
    for name, row, new, date, reason in targets.CHANGES:
        lines.append(f"| {name} | {row} | {now[name, row]:g} | {new:g} | {date} | {reason} |")
        now[name, row] = new
    return "\n\n" + "\n".join(lines) + "\n\n"


def cells(line: str) -> list[str]:
    """Split a row of a table."""
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def studied(name: str, row: str, column: str, number: int = 0) -> str:
    """
    Look up a cell of a table of the study.

    :param name: name of a file in ``study/results``, without its ending
    :param row: first cells of the row, with ``|`` between them
    :param column: heading of the column
    :param number: which of the rows with these cells, from 0
    :return: the cell, without what stands in brackets after it
    :raises KeyError: if there is no such cell
    """
    heading: list[str] = []
    before = ""
    for line in (ROOT / "study" / "results" / f"{name}.md").read_text().splitlines():
        if line.startswith("|") and not before.startswith("|"):
            heading = cells(line)
        before = line
        if not line.startswith(f"| {row} |") or column not in heading:
            continue
        if number == 0:
            return re.sub(r" \([^)]*\)$", "", cells(line)[heading.index(column)])
        number -= 1
    raise KeyError(f"study/results/{name}.md has no row {row!r} with a column {column!r}")


def value(text: str, digits: int | None = None) -> str:
    """
    Leave out the interval of a figure.

    :param text: figure with an interval, e.g. ``"0.775 [0.743, 0.806]"``
    :param digits: number of digits after the point; ``None``: all that there are
    :return: the figure
    """
    number = text.split(" [")[0]
    return number if digits is None else f"{float(number.replace(',', '')):.{digits}f}"


def mean_success(arm: str) -> str:
    """Mean over both sizes of DoorKey of the success of an arm."""
    sizes = [float(value(studied("doorkey-sizes", arm, f"{size} cells a side"))) for size in (5, 6)]
    return f"{sum(sizes) / len(sizes):.3f}"


def many_environments() -> str:
    """Say how many times the updates uniform draws need with 64 environments, and its 95% interval over the seeds."""
    table = (ROOT / "docs" / "benchmarks" / "many_environments.md").read_text().splitlines()
    rows = [cells(line) for line in table if re.match(r"\| \d", line)]
    updates = np.array([[int(cell.split()[0].replace(",", "")) for cell in row[1:]] for row in rows])
    gains = np.log(updates[:, 0] / updates[:, 1])
    drawn = np.random.default_rng(0).choice(gains, (10_000, len(gains))).mean(axis=1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return f"{np.exp(gains.mean()):.2f} [{low:.2f}, {high:.2f}]"


def known_length_less(algorithm: str) -> str:
    """Say how much less time eight gradient steps take in a loop of known length."""
    lines = (ROOT / "docs" / "benchmarks" / "h100" / "loops.md").read_text().splitlines()
    row = next(cells(line) for line in lines if line.startswith(f"| {algorithm} | 8 |"))
    return f"{100 * (1 - float(row[4])):.0f}%"


_ALL_GAMES = "all, in units of DQN, IQM"
_DIFFERENCE, _FACTOR = "difference [95% interval]", "factor [95% interval]"
_RATES = "mean over the rates"
_HALFCHEETAH = "HalfCheetah-v5, 100,000 steps | `continuous` | one rate | defaults"

FIGURES: dict[str, Callable[[], str]] = {
    "many environments gain": many_environments,
    "plane gain": lambda: studied("plane", "defaults | uniform | mean over the tasks", _FACTOR),
    "plane shuffled": lambda: studied("plane", "defaults | shuffled, defaults | mean over the tasks", _FACTOR),
    "plane no weights": lambda: studied("plane", "no weights | uniform | mean over the tasks", _FACTOR),
    "plane no weights shuffled": lambda: studied("plane", "no weights | shuffled, no weights | mean over the tasks", _FACTOR),
    "plane one gain": lambda: studied("plane-one", "defaults | uniform | mean over the tasks", _FACTOR),
    "plane one gain short": lambda: value(studied("plane-one", "defaults | uniform | mean over the tasks", _FACTOR), 2),
    "plane one no weights": lambda: studied("plane-one", "no weights | uniform | mean over the tasks", _FACTOR),
    "plane compiled": lambda: studied("plane-compiled", "uniform, compiled | uniform | 64 x 0.1", _FACTOR),
    "compiled solved": lambda: with_range(measured("sbx")["solved cpu"]),
    "control gain": lambda: studied("control", "defaults | uniform | mean over the tasks", _DIFFERENCE),
    "control no weights": lambda: studied("control", "no weights | uniform | mean over the tasks", _DIFFERENCE),
    "control iqm": lambda: studied("control", "no weights", "all, in units of uniform, IQM"),
    "control pendulum": lambda: value(studied("control", "no weights", "pendulum-swingup", 1)),
    "control finger": lambda: value(studied("control", "no weights", "finger-turn_hard", 1)),
    "control reacher": lambda: value(studied("control", "no weights", "reacher-hard", 1)),
    "control fetch": lambda: value(studied("control", "no weights", "FetchReach-v4", 1)),
    "control shuffled": lambda: studied("control", "no weights | shuffled, no weights | mean over the tasks", _DIFFERENCE),
    "control both": lambda: studied("control", "no weights | defaults | mean over the tasks", _DIFFERENCE),
    "reacher uniform": lambda: value(studied("control", "uniform", "reacher-hard"), 0),
    "reacher defaults": lambda: value(studied("control", "defaults", "reacher-hard"), 0),
    "reacher no weights": lambda: value(studied("control", "no weights", "reacher-hard"), 0),
    "control dense": lambda: studied("control-dense", "defaults | uniform | Pendulum-v1", _DIFFERENCE),
    "control dense no weights": lambda: studied("control-dense", "no weights | uniform | Pendulum-v1", _DIFFERENCE),
    # speed
    "draw less": lambda: less("speed", "sample 256"),
    "sac less": lambda: less("speed", "step sac cpu"),
    "td3 less": lambda: less("speed", "step td3 cpu"),
    "dqn less": lambda: less("speed", "step dqn cpu"),
    "add more": lambda: more("speed", "add 1"),
    "add 16 more": lambda: more("speed", "add 16"),
    "add times": lambda: times("speed", "add 1"),
    "demonstrations times": lambda: times("speed", "demonstrations"),
    "cpprb less": lambda: less("speed", "tree cpprb"),
    "cpprb frames less": lambda: less("speed", "frames peer cpprb"),
    "frames less": lambda: less("speed", "frames sample"),
    "frames bytes": lambda: f"{round(ratio('speed', 'frames memory'), -1):,.0f}",
    "tree bytes": lambda: times("speed", "memory"),
    "checkpoint seconds": lambda: f"{ratio('speed', 'files stall'):.2f} s",
    "save times": lambda: times("speed", "files save"),
    "load times": lambda: times("speed", "files load"),
    "compiled sac less": lambda: less("sbx", "sac 1 SB3 cpu"),
    "compiled sac range": lambda: range_less("sbx", "sac 1 SB3 cpu"),
    "compiled sac 8 less": lambda: less("sbx", "sac 8 SB3 cpu"),
    "compiled td3 less": lambda: less("sbx", "td3 1 SB3 cpu"),
    "compiled dqn less": lambda: less("sbx", "dqn 1 SB3 cpu"),
    "gpu sac less": lambda: less("h100/speed", "step sac cuda"),
    "gpu td3 more": lambda: more("h100/speed", "step td3 cuda"),
    "gpu dqn more": lambda: more("h100/speed", "step dqn cuda"),
    "gpu compiled sac less": lambda: less("h100/sbx", "sac 1 SB3 cuda"),
    "gpu compiled sac 8 less": lambda: less("h100/sbx", "sac 8 SB3 cuda"),
    "gpu compiled td3 less": lambda: less("h100/sbx", "td3 1 SB3 cuda"),
    "gpu compiled td3 8 less": lambda: less("h100/sbx", "td3 8 SB3 cuda"),
    "gpu compiled dqn less": lambda: less("h100/sbx", "dqn 1 SB3 cuda"),
    "gpu compiled dqn 8 less": lambda: less("h100/sbx", "dqn 8 SB3 cuda"),
    "gpu known sac less": lambda: known_length_less("SAC"),
    "gpu known td3 less": lambda: known_length_less("TD3"),
    "gpu known dqn less": lambda: known_length_less("DQN"),
    "sbx sac less": lambda: less("sbx", "sac 1 SBX cpu"),
    "sbx dqn less": lambda: less("sbx", "dqn 1 SBX cpu"),
    "actors less": lambda: less("distributed", "wall time, equal"),
    "folder": lambda: f"\n\n{(ROOT / 'docs' / 'benchmarks' / 'folder.md').read_text().strip()}\n\n",
    "missed": missed,
    "class costs": class_costs,
    "gpu costs": gpu_costs,
    "changed targets": changed,
    # the study
    "cliffwalk gain": lambda: studied("dose-response", "defaults", "16 states", 1),
    "cliffwalk gain short": lambda: value(studied("dose-response", "defaults", "16 states", 1), 1),
    "cliffwalk no weights": lambda: value(studied("dose-response", "no weights", "16 states", 1), 1),
    "chains gain": lambda: studied("chain-sizes", "defaults | uniform | mean over the tasks", _FACTOR),
    "chains gain short": lambda: value(studied("chain-sizes", "defaults | uniform | mean over the tasks", _FACTOR), 2),
    "chains shuffled": lambda: studied("chain-sizes", "defaults | shuffled, defaults | mean over the tasks", _FACTOR),
    "chains no weights": lambda: studied("chain-sizes", "no weights | uniform | mean over the tasks", _FACTOR),
    "doorkey defaults": lambda: mean_success("defaults"),
    "doorkey uniform": lambda: mean_success("uniform"),
    "doorkey gain": lambda: studied("doorkey-sizes", "defaults | uniform | mean over the tasks", _DIFFERENCE),
    "doorkey no weights": lambda: studied("doorkey-sizes", "no weights | uniform | mean over the tasks", _DIFFERENCE),
    "bits defaults": lambda: value(studied("bits-confirmation", "defaults", _RATES)),
    "bits uniform": lambda: value(studied("bits-confirmation", "uniform", _RATES)),
    "bits best rate": lambda: studied("bits-confirmation", "defaults | uniform | the largest rate", _DIFFERENCE),
    "pairs": lambda: studied("ages-pairs", "defaults | uniform | pairs", _DIFFERENCE),
    "mountaincar defaults": lambda: value(studied("sparse", "PERDQN", "MountainCar-v0")),
    "mountaincar uniform": lambda: value(studied("sparse", "PERDQN, uniform", "MountainCar-v0")),
    "minatar double": lambda: value(studied("discrete", "uniform, Double Q, 3 steps", _ALL_GAMES)),
    "minatar double defaults": lambda: studied("discrete", "PERDQN, Double Q, 3 steps", _ALL_GAMES),
    "minatar double uniform": lambda: studied("discrete", "uniform, Double Q, 3 steps", _ALL_GAMES),
    "minatar declared": lambda: studied("ages", "defaults times age | uniform | all pairs of seed and task", _DIFFERENCE),
    "minatar by seed": lambda: studied("ages", "defaults times age | uniform | mean over the tasks", _DIFFERENCE, 0),
    "minatar end": lambda: studied("ages", "defaults times age | uniform | mean over the tasks", _DIFFERENCE, 1),
    "halfcheetah": lambda: studied("summary", _HALFCHEETAH, "effect, %"),
    "pendulum lstm": lambda: studied("memory-pendulum", "PERRecurrentSAC", "PendulumNoVel-v1"),
    "pendulum lstm uniform": lambda: studied("memory-pendulum", "PERRecurrentSAC, uniform", "PendulumNoVel-v1"),
    "paper gain": lambda: f"{float(studied('cliffwalk', '12', 'uniform / proportional')):.0f}",
}


def filled(text: str) -> str:
    """
    Fill the figures of a page.

    :param text: the page
    :return: the page with the figures of the files
    :raises KeyError: for a figure that is not known, or not in its file
    """
    return _MARKED.sub(lambda found: f"<!--figure {found[1]}-->{FIGURES[found[1]]()}<!--/figure-->", text)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing, and fail if a figure is not that of its file")
    args = parser.parse_args(arguments)
    written = {path: filled(path.read_text()) for path in PAGES}
    for name in BENCHMARKS:
        written |= tables_of(ROOT / "docs" / "benchmarks" / f"{name}.json")
    wrong = {path: text for path, text in written.items() if path.read_text() != text}
    if not args.check:
        for path, text in wrong.items():
            path.write_text(text)
    if wrong:
        print(f"{'would change' if args.check else 'changed'}: {', '.join(str(path.relative_to(ROOT)) for path in wrong)}")
        sys.exit(1 if args.check else 0)
    print("All figures are those of the files.")


if __name__ == "__main__":
    main()
