"""Time two things in turn: the rows of the benchmarks, what they measure with, their options, and their tables."""

import argparse
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch as th
from gymnasium import spaces
from targets import target_of

from sb3_per import PrioritizedReplayBuffer

MILLION = 1_000_000
BATCH_SIZE = 256
ROUNDS = 45
# By benchmark that has several tables: the beginnings of the rows of each.
_FILES = r"(save|load|size|checkpoint)\b"
TABLES = {"speed": {"speed": f"(?!{_FILES})", "files": _FILES}}


class Row(NamedTuple):
    """
    One line of the table. With a rival, ``figure`` is ours / theirs, both in seconds. Of several runs, figure and seconds are
    means, and ``low`` and ``high`` are the smallest and the largest figure.
    """

    what: str
    against: str
    figure: float
    ours: float | None = None
    theirs: float | None = None
    runs: int = 1
    low: float | None = None
    high: float | None = None


# By key: what measures a row.
Rows = Iterator[tuple[str, Callable[[], Row]]]


def seconds(function: Callable[[], Any], repetitions: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(repetitions):
        function()
    return (time.perf_counter() - start) / repetitions


def compare(
    what: str,
    against: str,
    ours: Callable[[], Any],
    theirs: Callable[[], Any],
    repetitions: int,
    rounds: int = ROUNDS,
) -> Row:
    """
    Compute the median over the rounds of ours / theirs, timed in turn. Many short rounds tell more than a few long ones: the
    speed of a shared machine changes within a tenth of a second.
    """
    for function in (ours, theirs):  # compile and warm up
        seconds(function, max(repetitions // 2, 2))
    times = np.array([(seconds(ours, repetitions), seconds(theirs, repetitions)) for _ in range(rounds)])
    return Row(what, against, float(np.median(times[:, 0] / times[:, 1])), *np.median(times, axis=0).tolist())


def learn_in_turn(what: str, against: str, models: list[Any], n_steps: int, n_parts: int) -> Row:
    """Train our model and a rival in turn, in parts, so that changes of the machine reach both."""
    each = n_steps // n_parts
    times = [[seconds(lambda: model.learn(each, reset_num_timesteps=False)) for model in models] for _ in range(n_parts)]  # noqa: B023
    ours, theirs = np.array(times).T
    return Row(what, against, float(np.median(ours / theirs)), float(ours.sum()), float(theirs.sum()))


def box(*shape: int, dtype: Any = np.float32) -> spaces.Box:
    return spaces.Box(0, 255, shape, dtype) if dtype == np.uint8 else spaces.Box(-1, 1, shape, dtype)


def filled(buffer: Any) -> Any:
    """Fill a buffer: all rows written, some episodes ended, priorities spread."""
    rng = np.random.default_rng(0)
    for stored in (buffer.observations, buffer.next_observations):
        for array in stored.values() if isinstance(stored, dict) else [stored]:
            array[:] = 1
    buffer.actions[:] = 0
    buffer.rewards[:] = rng.normal(size=buffer.rewards.shape)
    buffer.dones[:] = rng.random(buffer.dones.shape) < 0.005
    buffer.full = True  # the rows are written by hand, which is faster than `add`
    if isinstance(buffer, PrioritizedReplayBuffer):
        buffer.sample(1)
        ids = buffer.transition_ids.ravel()
        buffer.update_priorities(ids, rng.exponential(size=len(ids)))
    return buffer


def sample_and_update(buffer: PrioritizedReplayBuffer, batch_size: int, n_critics: int = 1) -> Callable[[], None]:
    """Draw and update, as an algorithm does at every gradient step."""
    td_errors = th.randn(batch_size, n_critics)

    def run() -> None:
        buffer.update_priorities(buffer.sample(batch_size).indices, td_errors)

    return run


def add_again(buffer: Any, steps: list[Any]) -> Callable[[], None]:
    """Add recorded steps, one a call, again and again."""
    stream = itertools.cycle(steps)
    return lambda: buffer.add(*next(stream))


def machine(*packages: str) -> str:
    """Describe this machine, with the versions of these packages beside the usual ones."""
    processor = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").open() if "model name" in line), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = f", {th.cuda.get_device_name()}" if th.cuda.is_available() else ""
    names = ("stable-baselines3", "torch", "numpy", "numba", *packages)
    return (
        f"{processor or platform.processor()}, {os.cpu_count()} cores, {memory:.0f} GB{gpu}, {platform.system()}, "
        f"Python {platform.python_version()}, {', '.join(f'{name} {version(name)}' for name in names)}"
    )


def as_line(row: Row, target: float) -> str:
    def duration(value: float | None) -> str:
        return "" if value is None else f"{value:.1f} s" if value > 1 else f"{1e6 * value:,.1f} µs"

    figure = f"{row.figure:.3g}"
    if row.runs > 1:
        figure += f" ({row.low:.3g} to {row.high:.3g} in {row.runs} runs)"
    verdict = "met" if row.figure <= target else "**missed**"
    cells = (row.what, row.against, duration(row.ours), duration(row.theirs), figure, f"{target:.3g}", verdict)
    return f"| {' | '.join(cells)} |"


def as_table(rows: dict[str, Row], benchmark: str, about: str) -> str:
    """Write the rows of a benchmark as Markdown, with their targets, below what is said about the machine."""
    heading = "| what | against | ours | theirs | figure | target | |\n|---|---|---|---|---|---|---|"
    return "\n".join([f"{about}.", "", heading, *(as_line(row, target_of(benchmark, key)) for key, row in rows.items()), ""])


def mean_of_runs(runs: Sequence[Row]) -> Row:
    """Average the same row of several runs. Numbers of steps in its name are those of one run, and go."""
    figures = [row.figure for row in runs]
    what, against = (re.sub(r" \([\d,]+ steps\)$", "", text) for text in runs[0][:2])
    seconds = (None if runs[0].ours is None else float(np.mean([row[i] for row in runs])) for i in (3, 4))
    return Row(what, against, float(np.mean(figures)), *seconds, len(runs), min(figures), max(figures))


def run_again(args: argparse.Namespace, benchmark: str) -> dict[str, Row]:
    """Run the script several times, each time in a fresh process, and average its rows."""
    found: list[dict[str, Row]] = []
    for _ in range(args.runs):
        with tempfile.TemporaryDirectory() as folder:
            options = ["--only", args.only, "--device", args.device, "--out", folder, *["--quick"] * args.quick]
            subprocess.run([sys.executable, sys.argv[0], *options], check=True)
            found.append(read_rows(Path(folder, f"{benchmark}.json")))
    return {key: mean_of_runs([rows[key] for rows in found]) for key in found[0]}


def read_rows(path: Path) -> dict[str, Row]:
    """Read the rows of a benchmark from their JSON file."""
    return {key: Row(**row) for key, row in json.loads(path.read_text())["rows"].items()}


def options(about: str | None, keys: str, devices: tuple[str, ...] = ("cpu", "cuda")) -> argparse.ArgumentParser:
    """Make the options of a script that measures rows on these devices. Some of their keys are given."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"rows whose key contains this: {keys}")
    parser.add_argument("--quick", action="store_true", help="small buffers, few rounds and short runs, to try the script")
    parser.add_argument("--device", default="cpu", choices=devices, help="of the networks in the gradient steps and runs")
    parser.add_argument("--runs", type=int, default=1, help="measure in so many fresh processes: mean and range")
    parser.add_argument("--out", type=Path, help="folder for the tables, and their figures as JSON")
    return parser


def tables_of(path: Path) -> dict[Path, str]:
    """Write the tables of a benchmark from its JSON file, with today's targets. Return them by the paths of their files."""
    benchmark, rows, about = path.stem, read_rows(path), json.loads(path.read_text())["machine"]
    found: dict[Path, str] = {}
    for name, pattern in TABLES.get(benchmark, {benchmark: ""}).items():
        of_table = {key: row for key, row in rows.items() if re.match(pattern, row.what)}
        if of_table:
            found[path.with_name(f"{name}.md")] = as_table(of_table, benchmark, about)
    return found


def publish(args: argparse.Namespace, makers: Rows, about: str, benchmark: str) -> None:
    """
    Measure and print the rows that are asked for. With ``--out``, write them into a JSON file, named like the benchmark, and
    into its tables. With ``--only`` or on a GPU, earlier rows stay.
    """
    path = args.out and args.out / f"{benchmark}.json"
    if path and path.exists() and (before := json.loads(path.read_text())["machine"]) != about:
        raise SystemExit(f"{path} has rows of another machine, {before}: name another folder with --out")
    rows = read_rows(path) if path and path.exists() and (args.only or args.device != "cpu") else {}
    if args.runs > 1:
        found = run_again(args, benchmark)
        print(as_table(found, benchmark, about), end="", flush=True)
        rows |= found
    else:
        print(as_table({}, benchmark, about), end="", flush=True)
        for key, maker in makers:
            if args.only in key:
                rows[key] = maker()
                print(as_line(rows[key], target_of(benchmark, key)), flush=True)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        as_json = {key: row._asdict() for key, row in rows.items()}
        path.write_text(json.dumps(dict(machine=about, rows=as_json), indent=1) + "\n")
        for table, text in tables_of(path).items():
            table.write_text(text)
