"""
Measure what prioritized replay costs. Each figure stands beside a rival that is timed in turn, in the same process.

    make benchmark                                      # measure everything, write to docs/benchmarks
    python benchmarks/speed.py --only sample            # only rows whose key contains "sample"
    python benchmarks/speed.py --only step --device cuda
"""

import argparse
import contextlib
import functools
import itertools
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")

import numpy as np
import torch as th
from baselines import NumpyTree, PythonTree
from file_rows import file_rows
from frame_rows import frame_rows
from gymnasium import spaces
from sequence_rows import sequence_rows
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from timing import (
    BATCH_SIZE,
    MILLION,
    ROUNDS,
    Absent,
    Row,
    Rows,
    box,
    compare,
    count_seconds,
    filled,
    gradient_step,
    learn_in_turn,
    sample_and_update,
    seconds,
)

from sb3_per import (
    PERDQN,
    PERSAC,
    PERTD3,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    PriorityMonitor,
    SumTree,
)

# ---- draw and update of a batch, by the tree alone


def cycle(tree: Any) -> Callable[[], None]:
    """Find and update, for trees with our interface."""
    masses = np.random.default_rng(0).random(BATCH_SIZE)
    return lambda: tree.update(tree.find(np.random.random_sample(BATCH_SIZE) * tree.total), masses)


def our_tree(size: int) -> Callable[[], None]:
    """Make the tree of this package."""
    tree = SumTree(size)
    tree.update(np.arange(size), np.ones(size))
    return cycle(tree)


def cpprb_tree(size: int) -> Callable[[], None]:
    """Make the buffer of cpprb with one float field, the least it takes."""
    try:
        import cpprb
    except ImportError as error:
        raise Absent(f"cpprb: {error}") from None
    rival = cpprb.PrioritizedReplayBuffer(size, {"x": {}}, alpha=0.6)
    rival.add(x=np.zeros(size), priorities=np.ones(size))
    masses = np.random.default_rng(0).random(BATCH_SIZE)
    return lambda: rival.update_priorities(rival.sample(BATCH_SIZE, beta=0.4)["indexes"], masses)


def torchrl_tree(size: int) -> Callable[[], None]:
    """Make the prioritized buffer of torchrl with one float field."""
    try:
        from torchrl.data import LazyTensorStorage, PrioritizedReplayBuffer

        rival = PrioritizedReplayBuffer(alpha=0.6, beta=0.4, storage=LazyTensorStorage(size), batch_size=BATCH_SIZE)
    except (ImportError, RuntimeError) as error:  # RuntimeError: its binary is for another torch
        raise Absent(f"torchrl: {error}") from None
    rival.extend(th.zeros(size))
    priorities = th.rand(BATCH_SIZE)
    return lambda: rival.update_priority(rival.sample(return_info=True)[1]["index"], priorities)


TREES: dict[str, Callable[[int], Callable[[], None]]] = {
    "SumTree": our_tree,
    "NumPy level tree": lambda size: cycle(NumpyTree(size)),
    "per-sample Python tree": lambda size: cycle(PythonTree(size, 1.0)),
    "cpprb": cpprb_tree,
    "torchrl": torchrl_tree,
}


def tree_rows(quick: bool) -> Rows:
    """Measure finding and updating 256 slots among a million."""
    size = 100_000 if quick else MILLION
    targets = {"NumPy level tree": 0.20, "cpprb": 0.12}

    def row(rival: str) -> Row:
        repetitions = 20 if "Python" in rival else 100
        ours, theirs = our_tree(size), TREES[rival](size)
        return compare(f"draw + update of {BATCH_SIZE}, tree", rival, targets.get(rival, np.nan), ours, theirs, repetitions)

    for rival in list(TREES)[1:]:
        yield f"tree {rival}", lambda rival=rival: row(rival)  # type: ignore[misc]


# ---- buffers


def buffer_rows(quick: bool) -> Rows:
    """Measure `sample` and `update_priorities` together, against SB3's `sample` alone or another setting of ours."""
    size = 100_000 if quick else MILLION
    mujoco, discrete = (box(17), box(6)), spaces.Discrete(2)

    def ours(size: int = size, what: Any = mujoco, **kwargs: Any) -> Any:
        return filled(PrioritizedReplayBuffer(size, *what, device="cpu", **kwargs))

    def against_stock(name: str, size: int, what: Any, batch: int, target: float, classes: Any = None, **kwargs: Any) -> Row:
        classes = classes or (PrioritizedReplayBuffer, ReplayBuffer)
        buffers = [filled(cls(size, *what, device="cpu", **kwargs)) for cls in classes]
        run = sample_and_update(buffers[0], batch, 2 if batch == BATCH_SIZE else 1)
        name = f"sample({batch}) + update, {name}"
        return compare(name, classes[1].__name__, target, run, lambda: buffers[1].sample(batch), 300)

    images, n_images = box(4, 84, 84, dtype=np.uint8), 5_000 if quick else 50_000
    goals = spaces.Dict({"observation": box(10), "achieved_goal": box(3), "desired_goal": box(3)})
    yield "sample 256", lambda: against_stock("obs 17, act 6", size, mujoco, 256, 0.65)
    yield "sample 32", lambda: against_stock("obs 4", size, (box(4), discrete), 32, 0.80)
    yield "images", lambda: against_stock("images", n_images, (images, discrete), 32, 1.0)
    of_goals = PrioritizedDictReplayBuffer, DictReplayBuffer
    yield "dict", lambda: against_stock("Dict", size, (goals, box(4)), 256, 1.0, of_goals)
    with_steps = PrioritizedReplayBuffer, NStepReplayBuffer
    yield "n-step", lambda: against_stock("3 steps", size, mujoco, 256, 1.0, with_steps, n_steps=3)

    def against_itself(what: str, against: str, target: float, *buffers: Any) -> Row:
        return compare(f"sample(256) + update, {what}", against, target, *(sample_and_update(b, 256, 2) for b in buffers), 300)

    def scaling() -> Row:
        sizes = (MILLION if quick else 10 * MILLION, 10_000)
        return against_itself("10M slots", "10k slots", 3.0, *(ours(n, (box(4), box(1))) for n in sizes))

    def demonstrations() -> Row:
        buffer = PrioritizedReplayBuffer(size, *mujoco, device="cpu", demonstration_fraction=0.25)
        buffer.add_demonstrations_from(ours(10_000))
        theirs = ours()
        return against_itself("a quarter demonstrations", "default", 1.3, filled(buffer), theirs)

    yield "rank", lambda: against_itself("rank-based", "proportional", 5.0, ours(scheme="rank"), ours())
    yield "scaling", scaling
    for name, kwargs in {
        "uniform_fraction=0.1": dict(uniform_fraction=0.1),
        "unique": dict(unique=True),
        "recency=0.996": dict(recency=0.996),
        "age_decay=3": dict(age_decay=3.0),
    }.items():
        yield (
            f"setting {name}",
            functools.partial(lambda n, k: against_itself(n, "default", np.nan, ours(**k), ours()), name, kwargs),
        )
    yield "demonstrations", demonstrations


def add_rows(quick: bool) -> Rows:
    """Measure `add` of one step of all environments."""

    def row(n_envs: int) -> Row:
        buffers = (c(MILLION, box(17), box(6), device="cpu", n_envs=n_envs) for c in (PrioritizedReplayBuffer, ReplayBuffer))
        obs, actions = np.ones((n_envs, 17), np.float32), np.ones((n_envs, 6), np.float32)
        step = (obs, obs, actions, np.ones(n_envs), np.zeros(n_envs), [{}] * n_envs)
        runs = [functools.partial(buffer.add, *step) for buffer in buffers]
        return compare(f"add, {n_envs} environment{'s' * (n_envs > 1)}", "ReplayBuffer", 1.15, *runs, 3000)

    yield "add 1", lambda: row(1)
    yield "add 16", lambda: row(16)


def memory_rows(quick: bool) -> Rows:
    """Measure the memory of the tree."""

    def memory() -> Row:
        n_bytes = sum(array.nbytes for array in vars(SumTree(MILLION)).values() if isinstance(array, np.ndarray))
        return Row("tree memory at 1M slots, bytes per slot", "", n_bytes / MILLION, 17.0)

    yield "memory", memory


# ---- start

IMPORT = """
import time, torch, stable_baselines3
t = time.time()
from sb3_per import PERSAC
print(time.time() - t)
"""
BUFFER = """
import time, numpy as np
from gymnasium import spaces
from sb3_per import PrioritizedReplayBuffer
t = time.time()
buffer = PrioritizedReplayBuffer(100, spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (1,)), device="cpu")
"""
SAMPLE = """
buffer.rewards[:] = 1
buffer.ring.advance(None, 100)
buffer.sample(32)
"""
END = "print(time.time() - t)"


def start_rows(quick: bool) -> Rows:
    """Measure the start of fresh processes."""

    def started(what: str, target: float, program: str, n_runs: int = ROUNDS) -> Row:
        """Run a program in fresh processes, and return the median of the times that it prints."""
        environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
        command = [sys.executable, "-c", program]
        runs = [subprocess.run(command, env=environment, capture_output=True, text=True, check=True) for _ in range(n_runs)]
        return Row(what, "", float(np.median([float(run.stdout) for run in runs])), target)

    with tempfile.TemporaryDirectory() as cache:
        # The first run fills the cache, so the order counts. numba is loaded when the first buffer is built.
        both, alone = BUFFER + SAMPLE + END, BUFFER + SAMPLE.replace("buffer.sample", "t = time.time()\nbuffer.sample") + END
        yield "start cold", lambda: started("first buffer and sample, cold cache, seconds", 10.0, both, n_runs=1)
        yield "start warm", lambda: started("first sample, warm cache, seconds", 0.3, alone)
        yield "start buffer", lambda: started("first buffer, warm cache, seconds", np.nan, BUFFER + END)
        yield "start import", lambda: started("import after torch and SB3, seconds", 0.5, IMPORT)


# ---- training


def training_rows(quick: bool, device: str) -> Rows:
    """Measure a gradient step with default networks, and a short run."""
    rounds = 3 if quick else 25

    def step(ours: Any, theirs: Any, env: str, target: float) -> Row:
        runs = (gradient_step(cls, env, device, buffer_size=100_000) for cls in (ours, theirs))
        what, against = f"gradient step, {ours.__name__}", f"{theirs.__name__} on {device}"
        return compare(what, against, target, *runs, 100, rounds)

    def uniform_actor() -> Row:
        settings = (dict(actor_batch="uniform"), {})
        runs = (gradient_step(PERSAC, "Pendulum-v1", device, replay_buffer_kwargs=each) for each in settings)
        what = 'gradient step, PERSAC, actor_batch="uniform"'
        return compare(what, f"default on {device}", np.nan, *runs, 100, rounds)

    def learn() -> Row:
        n_parts, n_steps = (3, 300) if quick else (10, 5_000)
        models = [cls("MlpPolicy", "Pendulum-v1", seed=0, device=device) for cls in (PERSAC, SAC)]
        return learn_in_turn(f"learn() of {n_steps:,} steps, PERSAC", f"SAC on {device}", models, n_steps, n_parts)

    yield "step uniform actor", uniform_actor
    yield "step sac", lambda: step(PERSAC, SAC, "Pendulum-v1", 1.00)
    yield "step td3", lambda: step(PERTD3, TD3, "Pendulum-v1", 1.00)
    yield "step dqn", lambda: step(PERDQN, DQN, "CartPole-v1", 1.02)
    yield "learn", learn
    yield "monitor", lambda: monitor(quick, device)


def monitor(quick: bool, device: str) -> Row:
    """Measure PriorityMonitor with the cheapest gradient step and the default interval."""
    spent = [0.0]

    class Timed(PriorityMonitor):
        def _on_training_start(self) -> None:
            super()._on_training_start()
            count_seconds(self.model.replay_buffer.draw_record, "add", spent)

    with tempfile.TemporaryDirectory() as log:
        model = PERDQN("MlpPolicy", "CartPole-v1", seed=0, device=device, tensorboard_log=log)
        callback = Timed(interval=2_000 if quick else 10_000)
        count_seconds(callback, "_on_step", spent)
        total = seconds(lambda: model.learn(4_000 if quick else 20_000, callback=callback))
        model.logger.close()
    return Row("PriorityMonitor, share of the time of learn(), PERDQN", "", spent[0] / total, 0.01)


# ---- cost against capacity

STOCK = "SB3 ReplayBuffer (uniform, no update)"


def curves(quick: bool) -> dict[str, dict[str, dict[int, float]]]:
    """Time the rivals in turn at each capacity. Return seconds by panel, rival and capacity."""

    def buffers(capacity: int) -> dict[str, Callable[[], Any]]:
        spaces_ = (box(4), box(1))
        ours = {
            s: filled(PrioritizedReplayBuffer(capacity, *spaces_, device="cpu", scheme=s)) for s in ("proportional", "rank")
        }
        stock = filled(ReplayBuffer(capacity, *spaces_, device="cpu"))
        runs: dict[str, Callable[[], Any]] = {f"sb3_per, {s}": sample_and_update(ours[s], BATCH_SIZE, 2) for s in ours}
        return {**runs, STOCK: lambda: stock.sample(BATCH_SIZE)}

    def trees(capacity: int) -> dict[str, Callable[[], Any]]:
        found = {}
        for name, make in TREES.items():
            with contextlib.suppress(Absent):
                found[name] = make(capacity)
        return found

    panels: dict[str, dict[str, dict[int, float]]] = {}
    kinds = {f"draw + update of {BATCH_SIZE}, trees": trees, f"sample({BATCH_SIZE}) + update, buffers": buffers}
    for (title, make), power in itertools.product(kinds.items(), range(3, 5 if quick else 8)):
        runs = make(10**power)
        times: dict[str, list[float]] = {name: [] for name in runs}
        for _, (name, run) in itertools.product(range(ROUNDS), runs.items()):
            repetitions = 5 if "Python" in name else 200
            seconds(run, repetitions // 5)  # fill the caches with its memory instead of the rival's
            times[name].append(seconds(run, repetitions))
        for name in times:
            panels.setdefault(title, {}).setdefault(name, {})[10**power] = float(np.median(times[name]))
    return panels


def draw(panels: dict[str, dict[str, dict[int, float]]], path: Path) -> None:
    """Draw time over capacity on logarithmic axes, a panel for each kind."""
    from figures import figure_of, looks, save

    roles = {"SumTree": "defaults", "sb3_per, proportional": "defaults", "sb3_per, rank": "rank", STOCK: "stock"}
    figure = figure_of(5.0)
    axes = figure.subplots(1, len(panels), sharey=True)
    for axis, (title, rivals) in zip(axes, panels.items(), strict=True):
        look = looks({name: roles.get(name, "") for name in rivals})
        for name, points in rivals.items():
            times = [1e6 * value for value in points.values()]
            axis.loglog(list(points), times, label=name.replace(" (", "\n("), **look[name])
        axis.set(title=title, xlabel="capacity (transitions)")
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), fontsize=11)
    axes[0].set_ylabel("time (µs), medians")
    save(figure, path)


# ---- report


def machine() -> str:
    """Describe this machine."""
    processor = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").open() if "model name" in line), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    gpu = f", {th.cuda.get_device_name()}" if th.cuda.is_available() else ""
    packages = ", ".join(f"{name} {version(name)}" for name in ("stable-baselines3", "torch", "numpy", "numba"))
    return (
        f"{processor or platform.processor()}, {os.cpu_count()} cores, {memory:.0f} GB{gpu}, {platform.system()}, "
        f"Python {platform.python_version()}, {packages}"
    )


def as_line(row: Row) -> str:
    """Write a row of a Markdown table."""

    def duration(value: float | None) -> str:
        return "" if value is None else f"{value:.1f} s" if value > 1 else f"{1e6 * value:,.1f} µs"

    verdict = "" if np.isnan(row.target) else "met" if row.figure <= row.target else "**missed**"
    target = "" if np.isnan(row.target) else f"{row.target:.3g}"
    cells = (row.what, row.against, duration(row.ours), duration(row.theirs), f"{row.figure:.3g}", target, verdict)
    return f"| {' | '.join(cells)} |"


HEADING = "| what | against | ours | theirs | figure | target | |\n|---|---|---|---|---|---|---|"


def as_table(rows: Iterable[Row], about: str = "") -> str:
    """Write the rows as Markdown, below what is said about the machine."""
    return "\n".join([f"{about or machine()}; medians of several rounds.", "", HEADING, *map(as_line, rows), ""])


def measured(makers: Rows, only: str, absent: list[str]) -> Iterator[tuple[str, Row]]:
    """Measure and print the rows whose key contains ``only``, and note why others are left out."""
    for key, maker in makers:
        if only in key:
            try:
                row = maker()
            except Absent as error:
                absent.append(str(error))
            else:
                print(as_line(row), flush=True)
                yield key, row


def write(folder: Path, rows: dict[str, dict[str, Any]], absent: list[str], quick: bool, is_part: bool) -> None:
    """
    Write ``speed.json``, the tables ``speed.md`` and ``files.md``, and ``speed.png``. If only some rows were measured, other
    rows of the same machine stay, and so does the picture.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = {"machine": machine(), "rows": rows, "absent": absent}
    path = folder / "speed.json"
    if is_part and path.exists():
        before = json.loads(path.read_text())
        assert before["machine"] == machine(), f"{path} is of another machine: {before['machine']}"
        results = {**before, "rows": {**before["rows"], **rows}}
    else:
        results["seconds"] = panels = curves(quick)
        draw(panels, folder / "speed.png")
    path.write_text(json.dumps(results, indent=1) + "\n")
    table = [Row(**row) for row in results["rows"].values()]
    of_files = [row for row in table if re.match(r"(save|load|size|checkpoint|peak)\b", row.what)]
    (folder / "files.md").write_text(as_table(of_files))
    left_out = "".join(f"\nLeft out: {reason}\n" for reason in results["absent"])
    (folder / "speed.md").write_text(as_table([row for row in table if row not in of_files]) + left_out)


def options(about: str | None, keys: str) -> argparse.ArgumentParser:
    """Make the options of a script that measures rows, some of whose keys are given."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"rows whose key contains this: {keys}")
    parser.add_argument("--quick", action="store_true", help="small buffers, few rounds and short runs, to try the script")
    parser.add_argument("--device", default="cpu", help="of PyTorch's networks in the gradient steps and runs")
    parser.add_argument("--out", type=Path, help="folder for the tables, their figures as JSON, and the picture")
    return parser


def main() -> None:
    """Run with the arguments of the command line."""
    args = options(__doc__, "sample, tree, add, step, start, learn, rank, ...").parse_args()
    th.set_num_threads(2)
    groups = (tree_rows, add_rows, buffer_rows, frame_rows, file_rows, sequence_rows, memory_rows, start_rows)
    makers = itertools.chain(*(group(args.quick) for group in groups), training_rows(args.quick, args.device))
    print(as_table([]), end="")
    absent: list[str] = []
    rows = {f"{row.what} | {row.against}": row._asdict() for _, row in measured(makers, args.only, absent)}
    print("\n".join(f"Left out: {reason}" for reason in absent))
    if args.out:
        write(args.out, rows, absent, args.quick, bool(args.only))


if __name__ == "__main__":
    main()
