"""
MinAtar with a modern DQN: does prioritized replay still help once Double Q and 3-step returns are there?

    python benchmarks/modern_dqn.py                  # what is missing; then modern_dqn_report.py
    python benchmarks/modern_dqn.py --seconds 600    # start no run after ten minutes; call again to continue

Five games, 300,000 steps each, with the settings of the suite `discrete` in learning.py; every arm has Double Q and 3 steps.
Rewards are common here; dose_response.py is about data that hardly ever have one.

Written down before the first run of the campaign:

- Score of a run: mean return of the last three of its fifteen evaluations.
- Arms: the uniform twin, the defaults, and LAP with alpha 0.6 and kappa 0.01.
- Each arm has one learning rate for all games: half the task's rate, the rate itself or twice the rate. It is the one with the
  highest mean over the games of the score, divided by the mean score of all choosing runs of that game. The choosing seed is
  not reported.
- What was cut for lack of time, before any run: one choosing seed (five runs for each arm and rate, one in each game) in place
  of three seeds and a rate for each game.
- All that is reported comes from the reporting seeds, at most eight. They run one after the other, each in all games with all
  arms. Added before the first of these runs: time may end before the eighth seed. Then the seeds that are complete are
  reported, and the campaign is over. Time decides, not the results; nobody looks at the scores of these seeds before.
- Primary endpoint: interquartile mean over games and seeds of the score, in units of the mean score of the uniform twin in
  that game. Intervals: stratified bootstrap. Test: exact permutation of the runs within each game, two-sided, against the
  twin, with Holm's correction for the two arms.
- A game is learned by an arm if its mean score is at least twice the return of a random policy. A game that the twin has not
  learned is reported beside the primary endpoint and is no part of it.
"""

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a run a core

import numpy as np
from learning import (
    DISCRETE_LAP,
    EVALUATION_SEED,
    OUT,
    SUITES,
    at_rates,
    evaluation_steps,
    fingerprint,
    make_env,
    named_at,
    register_environments,
    train,
)
from stable_baselines3.common.vec_env import VecEnv
from suite import Suite, Variant

from sb3_per.compare.campaign import Job, missing, read, run_missing

GAMES = tuple(f"MinAtar/{game}-v1" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"))
ARMS = {
    name: Variant("PERDQN", dict(double_q=True, n_steps=3, replay_buffer_kwargs=settings))
    for name, settings in {"uniform": dict(scheme="uniform"), "defaults": {}, "LAP": DISCRETE_LAP}.items()
}
RANDOM = "random"
RATES = (0.5, 1.0, 2.0)
CHOOSING = range(100, 101)
REPORTING = range(200, 208)

_DISCRETE = SUITES["discrete"]
SUITE = replace(
    _DISCRETE,
    environments=GAMES,
    variants=at_rates(ARMS, _DISCRETE.settings["learning_rate"], RATES),
    settings={**_DISCRETE.settings, "policy_kwargs": dict(net_arch=[128], optimizer_kwargs=dict(fused=True))},
)


def score(row: dict[str, str]) -> float:
    """Compute the score of a run from its row."""
    steps = evaluation_steps(SUITE)
    return float(np.mean([float(row[str(step)]) for step in steps[-len(steps) // 5 :]]))


def run(suite: Suite, game: str, variant: str, seed: int) -> dict[str, float]:
    """
    Train one run, see :func:`learning.train`, or evaluate a random policy as often.

    :return: mean return by step of the environment
    """
    if variant != RANDOM:
        return train(suite, game, variant, seed)
    register_environments()
    env = make_env(suite, game, suite.variants[named_at("uniform", 1.0)], suite.n_episodes)
    env.seed(EVALUATION_SEED)
    env.action_space.seed(seed)
    return {str(step): _return_of_random(env) for step in evaluation_steps(suite)}


def _return_of_random(env: VecEnv) -> float:
    """Average the return of the first episode of each environment, with random actions."""
    env.reset()
    returns, is_over = np.zeros(env.num_envs), np.zeros(env.num_envs, dtype=bool)
    while not is_over.all():
        _, rewards, dones, _ = env.step(np.array([env.action_space.sample() for _ in range(env.num_envs)]))
        returns += rewards * ~is_over
        is_over |= dones
    return round(float(returns.mean()), 4)


def _job(game: str, variant: str, seed: int) -> Job:
    name = dict(
        environment=game, variant=variant, seed=seed, settings="" if variant == RANDOM else fingerprint(SUITE, variant)
    )
    return name, (SUITE, game, variant, seed)


def random_jobs() -> list[Job]:
    """List the runs of a random policy, which show whether a game was learned."""
    return [_job(game, RANDOM, 0) for game in GAMES]


def choosing_jobs() -> list[Job]:
    """List the runs that choose the learning rates."""
    return [_job(game, variant, seed) for seed in CHOOSING for game in GAMES for variant in SUITE.variants]


def reporting_jobs(chosen: dict[str, float]) -> list[Job]:
    """List the runs that are reported, seed by seed, so that a stopped campaign has complete seeds."""
    return [_job(game, named_at(arm, chosen[arm]), seed) for seed in REPORTING for game in GAMES for arm in ARMS]


def chosen_rates(rows: list[dict[str, str]]) -> dict[str, float]:
    """
    Choose the learning rate of each arm.

    :param rows: rows of the file, with all runs of the choosing seeds
    :return: by arm: the factor of the learning rate with the highest mean score, each game in units of its own mean
    """
    scores: dict[tuple[str, str], list[float]] = {
        (row["environment"], row["variant"]): [] for row in rows if int(row["seed"]) in CHOOSING
    }
    for row in rows:
        if int(row["seed"]) in CHOOSING:
            scores[row["environment"], row["variant"]].append(score(row))
    means = {game: float(np.mean([v for (other, _), v in scores.items() if other == game])) for game in GAMES}
    units = {game: max(mean, 1e-9) for game, mean in means.items()}

    def relative(arm: str, rate: float) -> float:
        return float(np.mean([np.mean(scores[game, named_at(arm, rate)]) / units[game] for game in GAMES]))

    return {arm: max(RATES, key=lambda rate: relative(arm, rate)) for arm in ARMS}


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=1, help="runs at a time, one core each")
    parser.add_argument("--seconds", type=float, help="start no run after so long")
    parser.add_argument("--runs", type=Path, default=OUT / "modern-dqn.csv", help="CSV file of the runs")
    args = parser.parse_args(arguments)
    deadline = None if args.seconds is None else time.time() + args.seconds
    run_missing(args.runs, [*random_jobs(), *choosing_jobs()], run, args.workers, deadline)
    if not missing(args.runs, choosing_jobs()):
        run_missing(args.runs, reporting_jobs(chosen_rates(read(args.runs))), run, args.workers, deadline)


if __name__ == "__main__":
    main()
