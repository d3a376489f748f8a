"""
Does the compiled class learn as much from an update as the class of PyTorch? And what do several updates in one call cost,
whose draws do not see the TD errors of the call?

Both tasks end when they are solved, and what counts is the number of updates. Updates are made one a call; ten a call, all of
them drawn before the first; and ten at a time with a draw before each. The last two differ in nothing else.

    python -m study.compiled --workers 2    # runs alone

What was declared before the first run: declared.md.
"""

import os
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.logger import Logger

from . import campaign as campaigns
from .campaign import Campaign, Contrast
from .control import ARMS as DRAWS
from .plane import (
    CHECK_SEED,
    IN_A_ROW,
    MAX_STEPS,
    N_EPISODES,
    PERIOD,
    SAC_SETTINGS,
    SHARE,
    PlaneVecEnv,
    share_that_arrives,
)

PLANE, PENDULUM = "plane", "Pendulum-v1"
N_ENVS, RADIUS = 64, 0.1
DRAW = "no weights"
CALL = 10  # updates of a call, which divide the period of the checks
TORCH, SINGLE, AT_ONCE, IN_TURN = "PyTorch", "compiled", f"compiled, {CALL} a call", f"compiled, {CALL} in turn"
CAPS = {PLANE: 8_000, PENDULUM: 20_000}  # updates after which a run is stopped
LAST, SOLVED = 10, -200.0  # Pendulum is solved when the last episodes have this mean return


def algorithm_of(arm: str) -> Any:
    """Select the class of an arm."""
    if arm == TORCH:
        from sb3_per import PERSAC

        return PERSAC
    from sb3_per.sbx import PERSAC as Compiled

    if arm != IN_TURN:
        return Compiled

    class InTurn(Compiled):
        """Make the updates of a call one by one, so that each draw sees the TD errors of those before."""

        def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
            for _ in range(gradient_steps):
                super().train(1, batch_size)

    return InTurn


def make_model(task: str, arm: str, rate: float, seed: int) -> Any:
    """Make the model of a run."""
    n_updates = CALL if arm in (AT_ONCE, IN_TURN) else 1
    settings: dict[str, Any] = dict(
        learning_rate=rate,
        train_freq=n_updates,
        gradient_steps=n_updates,
        replay_buffer_kwargs=DRAWS[DRAW],
        seed=seed,
        device="cpu",
    )
    if task == PLANE:
        env: Any = PlaneVecEnv(N_ENVS, RADIUS, seed)
        settings = {
            **SAC_SETTINGS,
            "learning_starts": MAX_STEPS * N_ENVS,
            "policy_kwargs": dict(net_arch=[64, 64]),
            **settings,
        }
    else:
        env = gym.make(PENDULUM)
    return algorithm_of(arm)("MlpPolicy", env, **settings)


def solves(task: str, model: Any) -> bool:
    """Check whether the model solves its task now."""
    if task == PLANE:
        play = lambda observations: model.predict(observations, deterministic=True)[0]  # noqa: E731
        return share_that_arrives(play, PlaneVecEnv(N_EPISODES, RADIUS, CHECK_SEED, staggered=False)) >= SHARE
    returns = [episode["r"] for episode in model.ep_info_buffer][-LAST:]
    return len(returns) == LAST and float(np.mean(returns)) > SOLVED


def train(task: str, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """Train until the task is solved. Return ``updates`` and ``steps``, and whether they ``solved`` it."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    th.set_num_threads(1)
    model = make_model(task, arm, rate, seed)
    model.set_logger(Logger(None, []))
    n_checked = n_in_a_row = 0

    def goes_on(*_: Any) -> bool:
        nonlocal n_checked, n_in_a_row
        n_updates = model._n_updates
        if n_updates % PERIOD == 0 and n_updates > n_checked:
            n_checked = n_updates
            n_in_a_row = n_in_a_row + 1 if solves(task, model) else 0
        return n_in_a_row < IN_A_ROW and n_updates < CAPS[task]

    n_envs = model.n_envs
    model.learn((CAPS[task] + MAX_STEPS + CALL) * n_envs + 1_000, callback=goes_on, log_interval=1_000_000)
    return {"updates": model._n_updates, "steps": model.num_timesteps, "solved": int(n_in_a_row == IN_A_ROW)}


CAMPAIGN = Campaign(
    name="compiled-learning",
    endpoint="Updates until the task is solved.",
    tasks=(PLANE, PENDULUM),
    arms=dict.fromkeys((TORCH, SINGLE, AT_ONCE, IN_TURN), ("",)),
    rates=(1e-3,),
    choosing=range(0),
    reporting=range(800, 810),
    settings=dict(
        draw=DRAWS[DRAW],
        call=CALL,
        caps=CAPS,
        plane=[N_ENVS, RADIUS, SAC_SETTINGS],
        check=[PERIOD, N_EPISODES, SHARE, IN_A_ROW, LAST, SOLVED],
    ),
    train=train,
    score=lambda row: -float(np.log(float(row["updates"]))),
    primary=(Contrast(SINGLE, TORCH), Contrast(AT_ONCE, IN_TURN)),
    secondary=(Contrast(AT_ONCE, SINGLE),),
    by_task=(),
    is_log=True,
    digits=(0, 3),
    seconds={PLANE: 35.0, PENDULUM: 50.0},
)


if __name__ == "__main__":
    campaigns.main(CAMPAIGN, __doc__)
