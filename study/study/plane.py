"""
Points in the plane: does SAC gain from prioritized draws where success is rare and each transition is replayed seldom?

With one environment and an update for each of its steps, SAC draws each transition 256 times, so that a rare success is seen
anyway. With E environments in parallel and an update for each of their common steps, it draws each one 256 / E times. So the
cells of the campaign `plane` are numbers of environments times radii of the goal: replays times rarity. The campaign
`plane-one` asks the same of one environment.

What was declared before the first run: declared.md.
"""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import sbx
import stable_baselines3
import torch as th
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import VecEnv

import sb3_per
import sb3_per.sbx

from .campaign import Campaign, Contrast
from .learning import with_control
from .suites import NO_WEIGHTS

N_ENVS, RADII = (16, 64, 256), (0.3, 0.1, 0.05)
MIDDLE = "64 x 0.1"
# Replay settings of the arms; stock has none.
ARMS: dict[str, dict[str, Any]] = {
    "uniform": dict(scheme="uniform"),
    "defaults": {},
    "no weights": NO_WEIGHTS,
    "shuffled, defaults": dict(scheme="shuffled proportional"),
    "shuffled, no weights": dict(scheme="shuffled proportional", **NO_WEIGHTS),
    "LAP": dict(scheme="lap"),
    "stock": {},
}
JUDGED = ("defaults", "no weights")
COMPILED = ", compiled"  # what follows the names of arms of the compiled classes, where both run
CAP = 8_000
CAP_OF_ONE = 24_000  # with one environment, where a run needs more updates and fewer steps
# Updates between two checks, episodes of a check, the share of them that succeeds, and checks in a row.
PERIOD, N_EPISODES, SHARE, IN_A_ROW = 50, 100, 0.9, 2
CHECK_SEED = 1_000_000
BATCH_SIZE, MAX_STEPS = 256, 50
SAC_SETTINGS: dict[str, Any] = dict(
    buffer_size=1_000_000,
    batch_size=BATCH_SIZE,
    ent_coef=0.002,
    train_freq=1,
    gradient_steps=1,
)
RANDOM_EPISODES = 100_000
# By radius, the share of episodes of a random policy that succeed, measured before the first run: rarity.csv.
RANDOM_SHARES = {0.3: 0.02271, 0.1: 0.00544, 0.05: 0.00227}


class PlaneVecEnv(VecEnv):
    """
    Points with inertia in [-1, 1]^2, one for each environment. They start at rest in the left fifth and are pushed.

    An observation is position and velocity. A step sets the velocity to 0.8 times itself plus 0.04 times the action, and adds
    it to the position, which stays inside the square. Closer to (0.7, 0) than the radius, the reward is 1 and the episode
    ends; everywhere else it is 0. After 50 steps an episode is truncated.

    :param n_envs: number of points
    :param radius: radius of the goal
    :param seed: seed of the starts
    :param staggered: whether the first episode of each environment has an age already, so that they do not end together
    """

    goal = np.array([0.7, 0.0])

    def __init__(self, n_envs: int, radius: float, seed: int, staggered: bool = True):
        super().__init__(n_envs, spaces.Box(-2.0, 2.0, (4,), np.float32), spaces.Box(-1.0, 1.0, (2,), np.float32))
        self.radius = radius
        self.staggered = staggered
        self.rng = np.random.default_rng(seed)
        self.positions = np.zeros((n_envs, 2))
        self.velocities = np.zeros((n_envs, 2))
        self.ages = np.zeros(n_envs, np.int64)

    def reset(self) -> np.ndarray:
        self._start(np.arange(self.num_envs))
        if self.staggered:
            self.ages = self.rng.integers(MAX_STEPS, size=self.num_envs)
        return self._observations()

    def step_async(self, actions: np.ndarray) -> None:
        self.actions = np.clip(actions, -1.0, 1.0)

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        self.velocities = 0.8 * self.velocities + 0.04 * self.actions
        self.positions = np.clip(self.positions + self.velocities, -1.0, 1.0)
        self.ages += 1
        arrived = np.linalg.norm(self.positions - self.goal, axis=1) < self.radius
        ended = arrived | (self.ages == MAX_STEPS)
        last_observations = self._observations()
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        for env in np.flatnonzero(ended):
            infos[env] = {"terminal_observation": last_observations[env], "TimeLimit.truncated": not arrived[env]}
        self._start(np.flatnonzero(ended))
        return self._observations(), arrived.astype(np.float32), ended, infos

    def _start(self, envs: np.ndarray) -> None:
        self.positions[envs, 0] = self.rng.uniform(-1.0, -0.6, len(envs))
        self.positions[envs, 1] = self.rng.uniform(-1.0, 1.0, len(envs))
        self.velocities[envs] = 0.0
        self.ages[envs] = 0

    def _observations(self) -> np.ndarray:
        return np.concatenate([self.positions, self.velocities], axis=1).astype(np.float32)

    def close(self) -> None:
        pass

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self, attr_name, None)] * self.num_envs

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError("the points of a plane have no attributes of their own")

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        raise NotImplementedError("the points of a plane have no methods of their own")

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        return [False] * self.num_envs


def task_of(n_envs: int, radius: float) -> str:
    return f"{n_envs} x {radius}"


def cell_of(task: str) -> tuple[int, float]:
    """Return the number of environments and the radius of a task, e.g. of ``"64 x 0.1"``."""
    n_envs, radius = task.split(" x ")
    return int(n_envs), float(radius)


def cap_of(task: str) -> int:
    """Return the number of updates after which a run of a task is stopped."""
    return CAP_OF_ONE if cell_of(task)[0] == 1 else CAP


def share_that_arrives(policy: Any, env: PlaneVecEnv) -> float:
    """Play the first episode of each environment. Return the share of those that reach the goal."""
    observations, arrived = env.reset(), np.zeros(env.num_envs, bool)
    for _ in range(MAX_STEPS):
        # An episode that arrived has begun anew, but its environment counts only once.
        observations, rewards, _, _ = env.step(policy(observations))
        arrived |= rewards > 0
    return float(arrived.mean())


def algorithm_of(arm: str, is_compiled: bool) -> Any:
    """Select the class of an arm, of PyTorch or of JAX, with our replay buffer or, of the arm ``"stock"``, with its own."""
    if arm != "stock":
        return sb3_per.sbx.PERSAC if is_compiled else sb3_per.PERSAC
    return sbx.SAC if is_compiled else stable_baselines3.SAC


def train(task: str, arm: str, option: str, rate: float, seed: int, is_compiled: bool = False) -> dict[str, Any]:
    """Train until the task is solved. Return ``updates`` and ``steps``, and whether they ``solved`` it."""
    th.set_num_threads(1)
    n_envs, radius = cell_of(task)
    cap = cap_of(task)
    replay = {} if arm == "stock" else dict(replay_buffer_kwargs=with_control(ARMS[arm]))
    model = algorithm_of(arm, is_compiled)(
        "MlpPolicy",
        PlaneVecEnv(n_envs, radius, seed),
        learning_rate=rate,
        learning_starts=MAX_STEPS * n_envs,
        policy_kwargs=dict(net_arch=[64, 64]),
        seed=seed,
        device="cpu",
        **SAC_SETTINGS,
        **replay,
    )
    model.set_logger(Logger(None, []))
    n_in_a_row = 0

    def policy(observations: np.ndarray) -> np.ndarray:
        return model.predict(observations, deterministic=True)[0]

    def check(*_: Any) -> bool:
        nonlocal n_in_a_row
        n_updates = model._n_updates
        if n_updates and n_updates % PERIOD == 0:
            share = share_that_arrives(policy, PlaneVecEnv(N_EPISODES, radius, CHECK_SEED, staggered=False))
            n_in_a_row = n_in_a_row + 1 if share >= SHARE else 0
        return n_in_a_row < IN_A_ROW and n_updates < cap

    model.learn((cap + MAX_STEPS + 2) * n_envs, callback=check, log_interval=1_000_000)
    return {"updates": model._n_updates, "steps": model.num_timesteps, "solved": int(n_in_a_row == IN_A_ROW)}


def train_either(task: str, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """Train as :func:`train` does, with the class that the name of the arm says."""
    return train(task, arm.removesuffix(COMPILED), option, rate, seed, is_compiled=arm.endswith(COMPILED))


def random_successes(task: str) -> dict[str, int]:
    _, radius = cell_of(task)
    n_at_a_time = 1_000
    rng = np.random.default_rng(0)
    successes = 0.0
    for seed in range(RANDOM_EPISODES // n_at_a_time):
        env = PlaneVecEnv(n_at_a_time, radius, seed, staggered=False)
        successes += n_at_a_time * share_that_arrives(lambda obs: rng.uniform(-1.0, 1.0, (len(obs), 2)), env)
    return dict(episodes=RANDOM_EPISODES, successes=round(successes))


def seconds_of(task: str) -> float:
    """Return the measured CPU seconds of a run: one for 90 updates, and one for 7 million steps."""
    return 45.0


TASKS = tuple(itertools.starmap(task_of, itertools.product(N_ENVS, RADII)))
CAMPAIGN = Campaign(
    name="plane",
    endpoint="Updates until the task is solved.",
    unit="",
    tasks=TASKS,
    arms=dict.fromkeys(ARMS, ("",)),
    partial={"LAP": (MIDDLE,), "stock": (MIDDLE,)},
    rates=(3e-4, 1e-3, 3e-3),
    choosing=range(100, 103),
    reporting=range(200, 215),
    settings=dict(arms=ARMS, check=[PERIOD, N_EPISODES, SHARE, IN_A_ROW], sac=SAC_SETTINGS, cap=CAP),
    train=train,
    score=lambda row: -float(np.log(float(row["updates"]))),
    primary=tuple(Contrast(arm, "uniform") for arm in JUDGED),
    secondary=(
        *(Contrast(arm, f"shuffled, {arm}") for arm in JUDGED),
        *(Contrast(arm, "uniform", axis) for arm in JUDGED for axis in ("slope over replays", "slope over rarity")),
    ),
    axes={
        "slope over replays": lambda task: float(np.log(BATCH_SIZE / cell_of(task)[0])),
        "slope over rarity": lambda task: -float(np.log(RANDOM_SHARES[cell_of(task)[1]])),
    },
    by_task=tuple(Contrast(arm, "uniform", "each") for arm in JUDGED),
    is_log=True,
    digits=(0, 3),
    seconds=dict(zip(TASKS, map(seconds_of, TASKS), strict=True)),
    random_successes=random_successes,
)

ONE_TASKS = ("1 x 0.3", "1 x 0.1")
CAMPAIGNS = (
    CAMPAIGN,
    replace(
        CAMPAIGN,
        name="plane-one",
        tasks=ONE_TASKS,
        arms=dict.fromkeys(("uniform", *JUDGED), ("",)),
        partial={},
        choosing=range(300, 302),
        reporting=range(400, 410),
        settings={**CAMPAIGN.settings, "cap": CAP_OF_ONE},
        secondary=(),
        by_task=tuple(Contrast(arm, "uniform", "each") for arm in JUDGED),
        growth=1,
        seconds=dict.fromkeys(ONE_TASKS, 70.0),
        random_successes=None,
    ),
    replace(
        CAMPAIGN,
        name="plane-compiled",
        tasks=(MIDDLE,),
        arms=dict.fromkeys(("uniform", f"uniform{COMPILED}", "no weights", f"no weights{COMPILED}"), ("",)),
        partial={},
        rates=(1e-3,),
        choosing=range(0),
        reporting=range(500, 510),
        train=train_either,
        primary=tuple(Contrast(f"{arm}{COMPILED}", arm) for arm in ("uniform", "no weights")),
        secondary=(),
        by_task=(),
        random_successes=None,
    ),
)
