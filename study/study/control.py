"""
SAC in 32 environments, on tasks that others wrote: what plane.py asks, where success is sparse and the task is not ours.

With 32 environments and one update for each of their common steps, each transition is drawn 8 times on average. The tasks are
three of the DeepMind Control Suite, whose rewards are sparse there, and FetchReach of Gymnasium-Robotics with its sparse
reward. Pendulum, whose reward is dense, is the counter-case, a campaign of its own: no gain is expected there.

What was declared before the first run: declared.md.
"""

import functools
import os
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from gymnasium import spaces
from gymnasium.wrappers import FlattenObservation
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor

from sb3_per import PERSAC

from .campaign import Campaign, Contrast, mean_of_all, mean_of_last_fifth
from .learning import random_policy, with_control
from .suites import NO_WEIGHTS

# Replay settings of the arms.
ARMS: dict[str, dict[str, Any]] = {
    "uniform": dict(scheme="uniform"),
    "defaults": {},
    "no weights": NO_WEIGHTS,
    "shuffled, no weights": dict(scheme="shuffled proportional", **NO_WEIGHTS),
}
RANDOM = "random"
JUDGED = ("defaults", "no weights")
N_ENVS, REPEAT = 32, 4
# Common steps of an episode. All episodes of a task are equally long.
LENGTHS = {"pendulum-swingup": 250, "finger-turn_hard": 250, "reacher-hard": 250, "FetchReach-v4": 50, "Pendulum-v1": 200}
DENSE = "Pendulum-v1"
SPARSE = tuple(task for task in LENGTHS if task != DENSE)
# Updates of a run, and means of returns that are kept of it, one for as many updates each.
UPDATES = {task: 4_000 if task in (DENSE, "FetchReach-v4") else 8_000 for task in LENGTHS}
N_MEANS = {task: 10 if task == DENSE else 16 for task in LENGTHS}
SAC_SETTINGS: dict[str, Any] = dict(buffer_size=1_000_000, batch_size=256, train_freq=1, gradient_steps=1)
NET_ARCH = [128, 128]
# Measured CPU seconds of a run on two cores that others used as well.
SECONDS = {"pendulum-swingup": 220.0, "finger-turn_hard": 265.0, "reacher-hard": 230.0, "FetchReach-v4": 630.0, DENSE: 50.0}


class ControlSuiteEnv(gym.Env):
    """
    A task of the DeepMind Control Suite, with its observations in one vector, and actions in [-1, 1] that are repeated.

    The reward of a step is the sum over the repeats. Episodes end at the time limit of the suite alone, so they are truncated.

    :param task: domain and task, e.g. ``"reacher-hard"``
    :param seed: seed of the starts
    :param repeat: how often an action is repeated
    """

    def __init__(self, task: str, seed: int, repeat: int = REPEAT):
        os.environ.setdefault("MUJOCO_GL", "disabled")  # nothing is drawn
        from dm_control import suite

        self.repeat = repeat
        self.env = suite.load(*task.split("-"), task_kwargs=dict(random=seed))
        actions = self.env.action_spec()
        self.low, self.high = actions.minimum, actions.maximum
        self.action_space = spaces.Box(-1.0, 1.0, actions.shape, np.float32)
        n_numbers = sum(int(np.prod(part.shape)) for part in self.env.observation_spec().values())
        self.observation_space = spaces.Box(-np.inf, np.inf, (n_numbers,), np.float32)

    @staticmethod
    def _vector(observation: dict[str, Any]) -> np.ndarray:
        return np.concatenate([np.ravel(part) for part in observation.values()]).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        return self._vector(self.env.reset().observation), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        action = self.low + (np.asarray(action, float) + 1.0) / 2.0 * (self.high - self.low)
        reward = 0.0
        for _ in range(self.repeat):
            step = self.env.step(action)
            reward += step.reward
            if step.last():
                break
        return self._vector(step.observation), reward, False, step.last(), {}


def make_one(task: str, seed: int) -> gym.Env:
    """Make one environment of a task; its starts follow from the seed."""
    if task == "FetchReach-v4":
        import gymnasium_robotics

        gym.register_envs(gymnasium_robotics)
        return FlattenObservation(gym.make(task))
    return gym.make(task) if task == DENSE else ControlSuiteEnv(task, seed)


def first_seed_of(seed: int) -> int:
    """Return the seed of the first environment of a run; the others have the next ones, and no two runs share any."""
    return 1_000 * seed


def make_envs(task: str, seed: int) -> VecMonitor:
    """Make the environments of a run."""
    seeds = [first_seed_of(seed) + i for i in range(N_ENVS)]
    return VecMonitor(DummyVecEnv([functools.partial(make_one, task, each) for each in seeds]))


def columns_of(task: str, returns: list[float]) -> dict[str, float]:
    """Average the returns of all training episodes, in the order of their ends, by the updates until then."""
    n = N_MEANS[task]
    means = np.array(returns).reshape(n, -1).mean(axis=1)
    return {str(UPDATES[task] * (i + 1) // n): round(float(mean), 4) for i, mean in enumerate(means)}


def train(task: str, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """
    Train once, or play as long with random actions. Return mean returns of the training episodes by updates. The first episode
    of each environment, which is random in all arms, does not count.
    """
    th.set_num_threads(1)
    env = make_envs(task, seed)
    returns: list[float] = []

    def note(infos: list[dict[str, Any]]) -> None:
        returns.extend(info["episode"]["r"] for info in infos if "episode" in info)

    n_steps = LENGTHS[task] + UPDATES[task]
    if arm == RANDOM:
        policy = random_policy(env, seed)
        env.seed(first_seed_of(seed))
        env.reset()
        for _ in range(n_steps):
            note(env.step(policy.predict()[0])[3])
    else:
        model = PERSAC(
            "MlpPolicy",
            env,
            learning_rate=rate,
            learning_starts=LENGTHS[task] * N_ENVS,
            policy_kwargs=dict(net_arch=NET_ARCH),
            replay_buffer_kwargs=with_control(ARMS[arm]),
            seed=seed,
            device="cpu",
            **SAC_SETTINGS,
        )
        model.set_logger(Logger(None, []))
        env.seed(first_seed_of(seed))  # the model has seeded them with numbers that other runs have, too
        model.learn(n_steps * N_ENVS, callback=lambda variables, _: note(variables["infos"]) or True, log_interval=1_000_000)
    env.close()
    return columns_of(task, returns[N_ENVS:])


def score(row: dict[str, str]) -> float:
    """Return the mean return over the run; of FetchReach, whose reward is -1 or 0, the steps at the goal."""
    return mean_of_all(row) + offset_of(row["task"])


def score_of_the_end(row: dict[str, str]) -> float:
    return mean_of_last_fifth(row) + offset_of(row["task"])


def offset_of(task: str) -> float:
    return float(LENGTHS[task]) if task == "FetchReach-v4" else 0.0


CAMPAIGN = Campaign(
    name="control",
    endpoint="Mean return over all training episodes, of FetchReach the steps at the goal.",
    tasks=SPARSE,
    arms=dict.fromkeys(ARMS, ("",)),
    rates=(3e-4, 1e-3),
    choosing=range(100, 102),
    reporting=range(200, 210),
    settings=dict(
        arms=ARMS,
        n_envs=N_ENVS,
        repeat=REPEAT,
        lengths=LENGTHS,
        updates=UPDATES,
        means=N_MEANS,
        sac=SAC_SETTINGS,
        networks=NET_ARCH,
    ),
    train=train,
    score=score,
    primary=tuple(Contrast(arm, "uniform") for arm in JUDGED),
    secondary=(Contrast("no weights", "shuffled, no weights"),),
    by_task=tuple(Contrast(arm, "uniform", "each") for arm in JUDGED),
    undeclared=(Contrast("no weights", "defaults"),),
    other_scores={"last quarter of the episodes": score_of_the_end},
    growth=0,
    is_relative=True,
    learned=score_of_the_end,
    digits=(2, 3),
    seconds=SECONDS,
    others=tuple((task, RANDOM, "", 1.0, 0) for task in SPARSE),
)
CAMPAIGNS = (
    CAMPAIGN,
    replace(
        CAMPAIGN,
        name="control-dense",
        endpoint="Mean return over all training episodes.",
        tasks=(DENSE,),
        by_task=(),
        other_scores={"last fifth of the episodes": score_of_the_end},
        is_relative=False,
        learned=None,
        digits=(1, 1),
        others=((DENSE, RANDOM, "", 1.0, 0),),
    ),
)
