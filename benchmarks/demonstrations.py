"""
Demonstrations in every batch: how soon is a sparse task solved with ten episodes of an expert?

    python benchmarks/demonstrations.py                  # what is missing; then demonstrations_report.py
    python benchmarks/demonstrations.py --seconds 600    # start no run after ten minutes; call again to continue

MountainCarContinuous-v0: a reward of 100 at the top of the hill, and a cost of thrust. SAC with its defaults mostly learns to
stand still. The expert is that of examples/start_from_demonstrations.py; its ten episodes are the same for all runs.

Written down before the first run of the campaign:

- Endpoint of a run: steps in the environment until the mean return of five evaluation episodes is at least 90, checked every
  1,000 steps. A run that is not there after 20,000 steps counts as 20,000 and is marked.
- Arms: SAC; PERSAC; PERSAC with demonstration_fraction 0.25 and 0.5; SAC with the demonstrations put into its buffer before
  the first step ("preloaded"), which is what users do today. All have the settings of the example, and learning_starts 1,000
  without demonstrations, 0 with them.
- Learning rates 3e-4 and 1e-3. Each arm has the one with fewer steps until solved on the choosing seeds, the smaller one if
  both are equal. All that is reported comes from the ten reporting seeds.
- Primary comparison: each arm with demonstrations against SAC, preloaded. Test: exact permutation, two-sided, with Holm's
  correction.
"""

import argparse
import functools
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a run a core

import numpy as np
import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import PERSAC
from sb3_per.compare.campaign import Job, missing, read, run_missing

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from start_from_demonstrations import TASK
from start_from_demonstrations import expert_episodes as record_expert

OUT = Path(__file__).resolve().parents[1] / "docs" / "evidence"

#: Share of the demonstrations by arm; None: without, -1: in the buffer before the first step.
ARMS: dict[str, tuple[type[SAC], float | None]] = {
    "SAC": (SAC, None),
    "SAC, preloaded": (SAC, -1.0),
    "PERSAC": (PERSAC, None),
    "PERSAC, demonstrations 0.25": (PERSAC, 0.25),
    "PERSAC, demonstrations 0.5": (PERSAC, 0.5),
}
RATES = (3e-4, 1e-3)
CHOOSING = range(100, 102)
REPORTING = range(200, 210)
MAX_STEPS, PERIOD, SOLVED, N_EPISODES = 20_000, 1_000, 90.0, 5
EVALUATION_SEED = 1_000_000


#: Ten episodes of the expert, the same for all runs.
expert_episodes = functools.cache(record_expert)


def make_model(arm: str, learning_rate: float, seed: int) -> SAC:
    """The learner of a run, which has the demonstrations if its arm has."""
    algorithm, share = ARMS[arm]
    settings: dict[str, Any] = dict(replay_buffer_kwargs=dict(demonstration_fraction=share)) if share and share > 0 else {}
    model = algorithm(
        "MlpPolicy",
        make_vec_env(TASK, seed=seed),
        learning_rate=learning_rate,
        learning_starts=1_000 if share is None else 0,
        policy_kwargs=dict(net_arch=[64, 64]),
        seed=seed,
        device="cpu",
        **settings,
    )
    buffer: Any = model.replay_buffer
    assert isinstance(buffer, ReplayBuffer)
    if share == -1.0:
        episodes = expert_episodes()
        for row in range(episodes.size()):
            info = {"TimeLimit.truncated": bool(episodes.timeouts[row, 0])}
            names = ("observations", "next_observations", "actions", "rewards", "dones")
            buffer.add(*(getattr(episodes, name)[row] for name in names), [info])
    elif share is not None:
        buffer.add_demonstrations_from(expert_episodes())
    return model


def steps_until_solved(arm: str, learning_rate: float, seed: int) -> dict[str, Any]:
    """
    One run.

    :param arm: a key of :data:`ARMS`
    :param learning_rate: of Adam
    :param seed: of the environment, the networks and the draws
    :return: ``steps``, whether the task was ``solved`` within them, and the last mean ``return``
    """
    th.set_num_threads(1)
    model, test_env = make_model(arm, learning_rate, seed), make_vec_env(TASK)
    result: dict[str, Any] = {}

    def evaluate(*_: Any) -> bool:
        if model.num_timesteps % PERIOD:
            return True
        test_env.seed(EVALUATION_SEED)
        mean = float(np.mean(evaluate_policy(model, test_env, N_EPISODES)[0]))
        result.update(steps=model.num_timesteps, solved=int(mean >= SOLVED), **{"return": round(mean, 2)})
        return mean < SOLVED

    model.learn(MAX_STEPS, callback=evaluate)
    return result


def _job(arm: str, learning_rate: float, seed: int) -> Job:
    name = dict(arm=arm, learning_rate=learning_rate, seed=seed)
    return name, tuple(name.values())


def choosing_jobs() -> list[Job]:
    """The runs that choose the learning rates."""
    return [_job(arm, rate, seed) for seed in CHOOSING for rate in RATES for arm in ARMS]


def reporting_jobs(chosen: dict[str, float]) -> list[Job]:
    """The runs that are reported, seed by seed."""
    return [_job(arm, chosen[arm], seed) for seed in REPORTING for arm in ARMS]


def chosen_rates(rows: list[dict[str, str]]) -> dict[str, float]:
    """
    :param rows: of the file, with all runs of the choosing seeds
    :return: by arm: the learning rate with fewer steps on those seeds
    """

    def steps(arm: str, rate: float) -> float:
        found = [row for row in rows if row["arm"] == arm and float(row["learning_rate"]) == rate]
        return float(np.mean([int(row["steps"]) for row in found if int(row["seed"]) in CHOOSING]))

    return {arm: min(RATES, key=lambda rate: steps(arm, rate)) for arm in ARMS}


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="runs at a time, one core each")
    parser.add_argument("--seconds", type=float, help="start no run after so long")
    parser.add_argument("--runs", type=Path, default=OUT / "demonstrations.csv", help="CSV file of the runs")
    args = parser.parse_args(arguments)
    deadline = None if args.seconds is None else time.time() + args.seconds
    run_missing(args.runs, choosing_jobs(), steps_until_solved, args.workers, deadline)
    if not missing(args.runs, choosing_jobs()):
        jobs = reporting_jobs(chosen_rates(read(args.runs)))
        run_missing(args.runs, jobs, steps_until_solved, args.workers, deadline)


if __name__ == "__main__":
    main()
