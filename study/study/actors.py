"""Do agents learn as well from actors, whose weights are some updates old, as from the same environments in one process?"""

import copy
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import PERDQN, PERSAC
from sb3_per.distributed import make_actors

from .campaign import Campaign, Contrast
from .learning import evaluations, returns_of

N_ACTORS = 8
RAY = dict(num_cpus=2, object_store_memory=200_000_000, log_to_driver=False)

# By environment: algorithm, number of transitions, settings. Updates for each transition are those of RL Zoo.
TASKS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "CartPole-v1": (PERDQN, 50_000, dict(learning_rate=2.3e-3, batch_size=64, buffer_size=100_000, learning_starts=1000,
        train_freq=1, gradient_steps=4, target_update_interval=80, exploration_fraction=0.16, exploration_final_eps=0.04,
        policy_kwargs=dict(net_arch=[256, 256]))),
    "Pendulum-v1": (PERSAC, 20_000, dict(learning_rate=1e-3, learning_starts=500, gradient_steps=-1)),
}  # fmt: skip


def train(env_id: str, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """Train a run. Return its score, and its ten evaluations: mean returns of 20 episodes of the deterministic policy."""
    th.set_num_threads(1)
    (algorithm, steps, settings), test_env = TASKS[env_id], make_vec_env(env_id, 20)
    env = make_actors(env_id, n_actors=N_ACTORS, ray_options=RAY) if arm == "actors" else make_vec_env(env_id, N_ACTORS)
    model = algorithm("MlpPolicy", env, seed=seed, **copy.deepcopy(settings))
    at = [steps * (i + 1) // 10 for i in range(10)]
    returns = evaluations(model, at, lambda: float(np.mean(returns_of(model, test_env, 20))))
    env.close()
    numbered = {f"evaluation_{i + 1}": round(value, 2) for i, value in enumerate(returns)}
    return {"score": round(float(np.mean(returns[-3:])), 3), **numbered}


CAMPAIGN = Campaign(
    name="actors",
    endpoint="Mean return of the last three of ten evaluations.",
    tasks=tuple(TASKS),
    arms={"synchronous": ("",), "actors": ("",)},
    rates=(1.0,),
    choosing=range(0),
    reporting=range(5),
    train=train,
    score=lambda row: float(row["score"]),
    primary=(Contrast("actors", "synchronous", "each"),),
    title="Against synchronous training",
    about_seeds="",
    most_workers=1,  # a run has processes of its own
    is_iqm=True,
    was_unpaired=True,
    digits=(1, 1),
    name_of=lambda env_id, arm, option, rate, seed: dict(
        environment=env_id, collection=arm, seed=seed, steps=TASKS[env_id][1]
    ),
)
