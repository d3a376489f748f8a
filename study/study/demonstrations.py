"""
Demonstrations in every batch: how soon are two sparse tasks solved with ten episodes of an expert?

- demonstrations: MountainCarContinuous-v0. A reward of 100 at the top of the hill, and a cost of thrust. SAC with its defaults
  mostly learns to stand still. The expert is that of examples/start_from_demonstrations.py.
- demonstrations-doorkey: MiniGrid-DoorKey-5x5-v0. Only the goal pays, behind a locked door whose key must be picked up. A
  random policy got there in 1 of 100 episodes. The expert is a planner (doorkey.py).

Its ten episodes are the same for all runs of a task. What was declared before the first run: declared.md.
"""

import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3 import DQN, SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm

from sb3_per import PERDQN, PERSAC

from . import doorkey
from .campaign import Campaign, Contrast
from .learning import evaluations, returns_of

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
import start_from_demonstrations as mountain_car

PERIOD = 1_000  # steps between two evaluations


class Task(NamedTuple):
    env: str | Callable[[], gym.Env]  # environment as SB3's ``make_vec_env`` takes it
    expert_episodes: Callable[[], ReplayBuffer]  # records the demonstrations
    classes: tuple[type[OffPolicyAlgorithm], type[OffPolicyAlgorithm]]  # the stock class, and that with prioritized replay
    settings: dict[str, Any]  # of the learners of all arms
    max_steps: int  # steps of a run that is not solved
    n_episodes: int  # episodes of an evaluation, the same every time
    n_test_envs: int  # environments that play them
    score: Callable[[list[float]], Any]  # score of an evaluation, from its returns
    scored: str  # what the score is
    solved: float  # score at which a run ends


TASKS = {
    "MountainCarContinuous": Task(
        mountain_car.TASK,
        functools.cache(mountain_car.expert_episodes),
        (SAC, PERSAC),
        {},
        max_steps=20_000,
        n_episodes=5,
        n_test_envs=1,
        score=np.mean,
        scored="return",
        solved=90.0,
    ),
    "DoorKey": Task(
        doorkey.make_env,
        functools.cache(doorkey.expert_episodes),
        (DQN, PERDQN),
        doorkey.DQN_SETTINGS,
        max_steps=15_000,
        n_episodes=20,
        n_test_envs=20,
        score=doorkey.success_rate,
        scored="success rate",
        solved=0.9,
    ),
}


def arms_of(task: Task) -> dict[str, float | None]:
    """List by arm its share of demonstrations. None: without, -1: in the buffer before the first step."""
    stock, ours = (cls.__name__ for cls in task.classes)
    shares = {f"{ours}, demonstrations {share:g}": share for share in (0.25, 0.5)}
    return {stock: None, preloaded(task): -1.0, ours: None, **shares}


def preloaded(task: Task) -> str:
    """Name the arm that all others are compared with."""
    return f"{task.classes[0].__name__}, preloaded"


def make_model(task: Task, arm: str, learning_rate: float, seed: int) -> OffPolicyAlgorithm:
    """Make the learner of a run, which has the demonstrations if its arm has."""
    share, settings = arms_of(task)[arm], dict(policy_kwargs=dict(net_arch=[64, 64]), **task.settings)
    if share and share > 0:
        settings["replay_buffer_kwargs"] = dict(demonstration_fraction=share)
    settings |= dict(learning_rate=learning_rate, learning_starts=1_000 if share is None else 0, seed=seed, device="cpu")
    model = task.classes[arm.startswith("PER")]("MlpPolicy", make_vec_env(task.env, seed=seed), **settings)
    buffer: Any = model.replay_buffer
    if share == -1.0:
        episodes: Any = task.expert_episodes()
        for row in range(episodes.size()):
            info = {"TimeLimit.truncated": bool(episodes.timeouts[row, 0])}
            names = ("observations", "next_observations", "actions", "rewards", "dones")
            buffer.add(*(getattr(episodes, name)[row] for name in names), [info])
    elif share is not None:
        buffer.add_demonstrations_from(task.expert_episodes())
    return model


def train(name: str, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """
    Train until the task is solved. Return ``steps``, whether the task was ``solved`` within them, and the last ``score``.
    """
    th.set_num_threads(1)
    task = TASKS[name]
    model, test_env = make_model(task, arm, rate, seed), make_vec_env(task.env, task.n_test_envs)
    score = lambda: float(task.score(returns_of(model, test_env, task.n_episodes)))  # noqa: E731
    last = evaluations(model, range(PERIOD, task.max_steps + 1, PERIOD), score, task.solved)[-1]
    return dict(steps=model.num_timesteps, solved=int(last >= task.solved), score=round(last, 2))


def campaign_of(file: str, name: str) -> Campaign:
    task, arms = TASKS[name], arms_of(TASKS[name])
    return Campaign(
        name=file,
        endpoint=f"Steps until a {task.scored} of {task.solved:g}; a run that is not solved counts as {task.max_steps:,}.",
        tasks=(name,),
        arms=dict.fromkeys(arms, ("",)),
        rates=(3e-4, 1e-3),
        choosing=range(100, 102),
        reporting=range(200, 210),
        train=train,
        score=lambda row: -float(row["steps"]),
        primary=tuple(Contrast(arm, preloaded(task)) for arm in arms if arm != preloaded(task)),
        also={f"{task.scored} at the end": (2 if task.solved < 1.0 else 0, lambda row: float(row["score"]))},
        growth=0,
        is_cost=True,
        was_unpaired=True,
        digits=(0, 0),
        name_of=lambda name, arm, option, rate, seed: dict(arm=arm, learning_rate=rate, seed=seed),
        figure="runs",
        cap=task.max_steps,
    )


CAMPAIGNS = (
    campaign_of("demonstrations", "MountainCarContinuous"),
    campaign_of("demonstrations-doorkey", "DoorKey"),
)
