"""
Train PERSAC in 64 environments at once, where success is rare, and its twin with uniform draws before it.

    python examples/many_environments.py            # seed 0
    python examples/many_environments.py 0 1 2 3    # these seeds

It prints the gradient updates until 90% of the last 200 episodes reach the goal. Fewer are better.
"""

import os
import sys
from typing import Any

import numpy as np
import torch as th
from plane_env import PlaneVecEnv

from sb3_per import PERSAC

if "OMP_NUM_THREADS" not in os.environ:
    th.set_num_threads(1)  # more would wait for each other, see docs/troubleshooting.md

N_ENVS = 64
UPDATES = 50 if os.environ.get("SB3_PER_SHORT") else 5_000
SEEDS = [int(argument) for argument in sys.argv[1:] if argument.isdigit()] or [0]
DRAWS: dict[str, dict[str, Any]] = {
    "uniform draws": dict(scheme="uniform"),
    "priorities": dict(beta=0),  # without weights, which take part of the effect back
}


def goes_on(*_: Any) -> bool:
    """Stop when the task is solved; the callback of learn()."""
    successes = model.ep_success_buffer
    return successes is None or len(successes) < 200 or np.mean(successes) < 0.9


for seed in SEEDS:
    for name, draw in DRAWS.items():
        model = PERSAC(
            "MlpPolicy",
            PlaneVecEnv(N_ENVS, seed=seed),
            # One update for a step of all environments: each transition is drawn 256 / 64 = 4 times. With one environment it
            # would be 256 times, and a rare success would be seen anyway.
            train_freq=1,
            gradient_steps=1,
            batch_size=256,
            buffer_size=1_000_000,  # transitions of all environments together
            learning_starts=50 * N_ENVS,  # an episode of each environment
            learning_rate=1e-3,
            ent_coef=0.002,
            policy_kwargs=dict(net_arch=[64, 64]),
            replay_buffer_kwargs=draw,
            stats_window_size=200,
            seed=seed,
        )
        model.learn((50 + UPDATES) * N_ENVS, callback=goes_on)
        assert model.ep_success_buffer is not None
        n_updates = (model.num_timesteps - model.learning_starts) // N_ENVS
        print(f"seed {seed}, {name}: {n_updates:,} updates, success {np.mean(model.ep_success_buffer):.2f}", flush=True)
