"""
Measure what prioritized replay costs. Each figure stands beside a rival that is timed in turn, in the same process.

    make benchmark                                      # measure everything, write to docs/benchmarks
    python benchmarks/speed.py --only sample            # only rows whose key contains "sample"
    python benchmarks/speed.py --only step --device cuda
"""

import functools
import itertools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "2")

import cpprb
import numpy as np
import timing
import torch as th
from file_rows import file_rows
from frame_rows import frame_rows
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common.buffers import DictReplayBuffer, NStepReplayBuffer, ReplayBuffer
from timing import BATCH_SIZE, MILLION, ROUNDS, Row, Rows, box, compare, filled, sample_and_update, seconds

from sb3_per import (
    PERDQN,
    PERSAC,
    PERTD3,
    PrioritizedDictReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    SumTree,
)
from sb3_per.integrations import from_vector_env

# Fresh processes in which the first sample is timed.
_STARTS = 9

# Time between two steps of EnvPool. `predict` of SAC with two layers of 64 takes longer.
POLICY_SECONDS = 2e-4

# Numbers of environments of simulators that step many at once.
MANY_ENVS = (64, 1_024)


def tree_rows(quick: bool) -> Rows:
    """Measure the tree alone, against the buffer of cpprb with one float field, the least it takes."""

    def row() -> Row:
        size = 100_000 if quick else MILLION
        tree, rival = SumTree(size), cpprb.PrioritizedReplayBuffer(size, {"x": {}}, alpha=0.6)
        tree.update(np.arange(size), np.ones(size))
        rival.add(x=np.zeros(size), priorities=np.ones(size))
        masses = np.random.default_rng(0).random(BATCH_SIZE)
        ours = lambda: tree.update(tree.find(np.random.random_sample(BATCH_SIZE) * tree.total), masses)  # noqa: E731
        theirs = lambda: rival.update_priorities(rival.sample(BATCH_SIZE, beta=0.4)["indexes"], masses)  # noqa: E731
        return compare(f"draw + update of {BATCH_SIZE}, tree", "cpprb", ours, theirs, 100)

    yield "tree cpprb", row


def buffer_rows(quick: bool) -> Rows:
    """Measure `sample` and `update_priorities` together, against SB3's `sample` alone or another setting of ours."""
    size = 100_000 if quick else MILLION
    mujoco, discrete = (box(17), box(6)), spaces.Discrete(2)

    def ours(size: int = size, what: Any = mujoco, **kwargs: Any) -> Any:
        return filled(PrioritizedReplayBuffer(size, *what, device="cpu", **kwargs))

    def against_stock(name: str, size: int, what: Any, batch: int, classes: Any = None, **kwargs: Any) -> Row:
        classes = classes or (PrioritizedReplayBuffer, ReplayBuffer)
        buffers = [filled(cls(size, *what, device="cpu", **kwargs)) for cls in classes]
        run = sample_and_update(buffers[0], batch, 2 if batch == BATCH_SIZE else 1)
        name = f"sample({batch}) + update, {name}"
        return compare(name, classes[1].__name__, run, lambda: buffers[1].sample(batch), 60)

    def against_itself(what: str, against: str, *buffers: Any) -> Row:
        return compare(f"sample(256) + update, {what}", against, *(sample_and_update(b, 256, 2) for b in buffers), 60)

    def demonstrations() -> Any:
        buffer = PrioritizedReplayBuffer(size, *mujoco, device="cpu", demonstration_fraction=0.25)
        buffer.add_demonstrations_from(ours(10_000))
        return filled(buffer)

    images, n_images = box(4, 84, 84, dtype=np.uint8), 5_000 if quick else 50_000
    goals = spaces.Dict({"observation": box(10), "achieved_goal": box(3), "desired_goal": box(3)})
    of_goals, with_steps = (PrioritizedDictReplayBuffer, DictReplayBuffer), (PrioritizedReplayBuffer, NStepReplayBuffer)
    small, large = (functools.partial(ours, n, (box(4), box(1))) for n in (10_000, MILLION if quick else 10 * MILLION))
    yield "sample 256", lambda: against_stock("obs 17, act 6", size, mujoco, 256)
    for n_envs in MANY_ENVS:
        what = f"{n_envs:,} environments"
        yield (
            f"sample 256, {n_envs} environments",
            functools.partial(against_stock, what, size, mujoco, 256, n_envs=n_envs),
        )
    yield "sample 32", lambda: against_stock("obs 4", size, (box(4), discrete), 32)
    yield "images", lambda: against_stock("images", n_images, (images, discrete), 32)
    yield "dict", lambda: against_stock("Dict", size, (goals, box(4)), 256, of_goals)
    yield "n-step", lambda: against_stock("3 steps", size, mujoco, 256, with_steps, n_steps=3)
    yield "rank", lambda: against_itself("rank-based", "proportional", ours(scheme="rank"), ours())
    yield "scaling", lambda: against_itself("10M slots", "10k slots", large(), small())
    settings: dict[str, Any] = {"unique": True, "recency=0.996": 0.996}
    for name, value in settings.items():
        changed = functools.partial(ours, **{name.partition("=")[0]: value})
        yield f"setting {name}", lambda name=name, made=changed: against_itself(name, "default", made(), ours())  # type: ignore[misc]
    yield "setting age_decay=3", lambda: against_itself("age_decay=3", "default", ours(age_decay=3.0), ours())
    yield "demonstrations", lambda: against_itself("a quarter demonstrations", "default", demonstrations(), ours())


def storage_rows(quick: bool) -> Rows:
    def row(n_envs: int) -> Row:
        buffers = (c(MILLION, box(17), box(6), device="cpu", n_envs=n_envs) for c in (PrioritizedReplayBuffer, ReplayBuffer))
        obs, actions = np.ones((n_envs, 17), np.float32), np.ones((n_envs, 6), np.float32)
        step = (obs, obs, actions, np.ones(n_envs), np.zeros(n_envs), [{}] * n_envs)
        runs = [functools.partial(buffer.add, *step) for buffer in buffers]
        what = f"add, {n_envs:,} environment{'s' * (n_envs > 1)}"
        return compare(what, "ReplayBuffer", *runs, 60 if n_envs in MANY_ENVS else 600)

    def memory() -> Row:
        n_bytes = sum(array.nbytes for array in vars(SumTree(MILLION)).values() if isinstance(array, np.ndarray))
        return Row("tree memory at 1M slots, bytes per slot", "", n_bytes / MILLION)

    yield "add 1", lambda: row(1)
    yield "add 16", lambda: row(16)
    for n_envs in MANY_ENVS:
        yield f"add {n_envs}", functools.partial(row, n_envs)
    yield "memory", memory


def sequence_rows(quick: bool) -> Rows:
    """Measure draws and updates of windows, and the cost of their states in `add`."""
    size, large = (100_000, MILLION) if quick else (MILLION, 10 * MILLION)
    spaces_, n_windows, n_rows = (box(17), box(6)), 32, 32 * 65
    states = (np.zeros((1, 1, 64), np.float32),) * 2

    def full(size: int) -> PrioritizedSequenceReplayBuffer:
        """Fill a buffer with episodes of 200 steps. Of the 65 rows of a window, 20 are burn-in, and 40 are learned."""
        settings: dict[str, Any] = dict(sequence_length=40, burn_in=20, n_steps=5, state_shapes=((1, 64), (1, 64)))
        buffer = PrioritizedSequenceReplayBuffer(size, *spaces_, "cpu", **settings)
        buffer.observations[:] = buffer.next_observations[:] = 1
        buffer.dones[199::200] = 1
        buffer.full = True  # the rows are written by hand, which is faster than `add`
        return buffer

    def draw_and_update(size: int) -> Callable[[], None]:
        buffer, td_errors = full(size), th.randn(40, n_windows)

        def run() -> None:
            batch = buffer.sample(n_windows)
            buffer.update_priorities(batch.indices, td_errors, batch.mask)

        return run

    def add(buffer: Any, **kwargs: Any) -> Callable[[], None]:
        obs, action, zeros, infos = np.zeros((1, 17), np.float32), np.zeros((1, 6), np.float32), np.zeros(1), [{}]
        return lambda: buffer.add(obs, obs, action, zeros, zeros, infos, **kwargs)

    def sample_row() -> Row:
        stock, what = filled(ReplayBuffer(size, *spaces_, "cpu")), f"sample + update of {n_windows} windows of 65 rows"
        return compare(what, f"SB3 sample({n_rows})", draw_and_update(size), lambda: stock.sample(n_rows), 20)

    def size_row() -> Row:
        what = f"the same, {large // MILLION}M transitions"
        return compare(what, "10k transitions", draw_and_update(large), draw_and_update(10_000), 20)

    def add_row() -> Row:
        ours = add(full(100_000), episode_starts=np.zeros(1, np.bool_), states=states)
        theirs = add(PrioritizedReplayBuffer(100_000, *spaces_, "cpu", n_steps=5))
        return compare("add, sequences with states of 64", "PrioritizedReplayBuffer", ours, theirs, 400)

    yield "sequences sample", sample_row
    yield "sequences size", size_row
    yield "sequences add", add_row


START = """
import time, torch, stable_baselines3
from gymnasium import spaces
start = time.time()
from sb3_per import PERSAC, PrioritizedReplayBuffer
imported = time.time()
buffer = PrioritizedReplayBuffer(100, spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (1,)), device="cpu")
made = time.time()
buffer.rewards[:] = 1
buffer.full = True
buffer.sample(32)
print(imported - start, made - imported, time.time() - made)
"""


def start_rows(quick: bool) -> Rows:
    """Measure the start of fresh processes. numba is loaded when the first buffer is built."""

    @functools.cache
    def times() -> np.ndarray:
        """Return the seconds of import, first buffer and first sample; the first run, without a cache, fills it."""
        with tempfile.TemporaryDirectory() as cache:
            program = [sys.executable, "-c", START]
            environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
            runs = [subprocess.check_output(program, env=environment, text=True) for _ in range(1 + _STARTS)]
        return np.array([run.split() for run in runs], float)

    def warm(what: str, column: int) -> Row:
        return Row(what, "", float(np.median(times()[1:, column])))

    yield "start cold", lambda: Row("first buffer and sample, cold cache, seconds", "", float(times()[0, 1:].sum()))
    yield "start warm", lambda: warm("first sample, warm cache, seconds", 2)
    yield "start buffer", lambda: warm("first buffer, warm cache, seconds", 1)
    yield "start import", lambda: warm("import after torch and SB3, seconds", 0)


class TimedPool:
    """An EnvPool that counts the seconds of its steps of all environments."""

    def __init__(self, pool: Any):
        self.pool, self.seconds = pool, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pool, name)

    def step(self, actions: np.ndarray) -> Any:
        start = time.perf_counter()
        result = self.pool.step(actions)
        self.seconds += time.perf_counter() - start
        return result


def environment_rows(quick: bool) -> Rows:
    """
    Measure a step of `from_vector_env` around EnvPool against the part of it that EnvPool's step of all environments takes.
    Two EnvPools are not compared: with the same work, they differ by up to 17%, by where a process has their memory.
    """

    def row(n_envs: int) -> Row:
        import envpool

        pool = TimedPool(envpool.make("ReacherHard-v1", env_type="gymnasium", num_envs=n_envs, num_threads=1, seed=0))
        length = pool.config["max_episode_steps"]
        # The ends of episodes are spread, so that as many end in the measured steps as in a long run.
        env = from_vector_env(pool.pool, stagger=length, flatten=True)
        env.env = pool
        env.reset()
        actions = np.random.default_rng(0).uniform(-1, 1, (n_envs, 2))
        seconds(lambda: env.step(actions), length)

        def step() -> None:
            env.step(actions)
            # EnvPool's thread sleeps while a policy acts, in training as here. This time is not counted.
            end = time.perf_counter() + POLICY_SECONDS
            while time.perf_counter() < end:
                pass

        times = []
        for _ in range(ROUNDS):
            pool.seconds = 0.0
            times.append((seconds(step, 20) - POLICY_SECONDS, pool.seconds / 20))
        ours, theirs = np.array(times).T
        figure = float(np.median(ours / theirs))
        name = f"step, from_vector_env, {n_envs} environments"
        return Row(name, "EnvPool's part, one thread", figure, float(np.median(ours)), float(np.median(theirs)))

    yield "envpool 256", lambda: row(256)
    yield "envpool 32", lambda: row(32)


def training_rows(quick: bool, device: str) -> Rows:
    """Measure a gradient step with default networks, and a short run."""

    def step(what: str, against: str, *classes: Any, **settings: Any) -> Row:
        """Compare our class, with these settings, with another one."""
        runs = []
        for cls, kwargs in zip(classes, (settings, {}), strict=True):
            env = "CartPole-v1" if issubclass(cls, DQN) else "Pendulum-v1"
            model = cls("MlpPolicy", env, learning_starts=2_000, buffer_size=100_000, seed=0, device=device, **kwargs)
            model.learn(2_000)
            runs.append(functools.partial(model.train, gradient_steps=1, batch_size=model.batch_size))
        return compare(f"gradient step, {what}", f"{against} on {device}", *runs, 20, 5 if quick else 125)

    def learn() -> Row:
        n_parts, n_steps = (3, 300) if quick else (10, 5_000)
        models = [cls("MlpPolicy", "Pendulum-v1", seed=0, device=device) for cls in (PERSAC, SAC)]
        return timing.learn_in_turn(f"learn() of {n_steps:,} steps, PERSAC", f"SAC on {device}", models, n_steps, n_parts)

    uniform = dict(replay_buffer_kwargs=dict(actor_batch="uniform"))
    what = 'PERSAC, actor_batch="uniform"'
    yield f"step uniform actor {device}", lambda: step(what, "default", PERSAC, PERSAC, **uniform)
    yield f"step sac {device}", lambda: step("PERSAC", "SAC", PERSAC, SAC)
    yield f"step td3 {device}", lambda: step("PERTD3", "TD3", PERTD3, TD3)
    yield f"step dqn {device}", lambda: step("PERDQN", "DQN", PERDQN, DQN)
    yield f"learn {device}", learn


def main() -> None:
    args = timing.options(__doc__, "sample, tree, add, step, start, learn, rank, envpool, ...").parse_args()
    th.set_num_threads(2)
    groups = (tree_rows, storage_rows, buffer_rows, frame_rows, file_rows, sequence_rows, environment_rows, start_rows)
    makers = itertools.chain(*(group(args.quick) for group in groups), training_rows(args.quick, args.device))
    timing.publish(args, makers, timing.machine(), "speed")


if __name__ == "__main__":
    main()
