"""
Train and evaluate the suites below; `report.py` makes tables and figures from the files that this script writes.

    make evidence                                                      # what is missing, and the report
    python benchmarks/learning.py --only discrete --workers 2          # this suite, or those whose name contains this
    python benchmarks/learning.py --only sparse --quick --out runs/try # a thousandth of the steps, to try it
"""

import argparse
import copy
import hashlib
import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a run a core

import gymnasium as gym
import numpy as np
import sb3_contrib
import stable_baselines3
from chain_env import ChainEnv
from doors_env import DoorsEnv
from memory_suites import MEMORY_SUITES
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize, sync_envs_normalization
from suite import Suite, Variant
from torch import nn

import sb3_per
from sb3_per.buffers.counterparts import PRIORITIZED_CLASSES
from sb3_per.compare.campaign import Job, run_missing
from sb3_per.compare.controls import control_of

sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
from pairs_trading_env import PairsTradingEnv

OUT = Path(__file__).resolve().parents[1] / "docs" / "evidence"
# Seed of the first evaluation environment; the others have the next ones. They are the same at every evaluation, and far from
# the training seeds.
EVALUATION_SEED = 1_000_000


# A third of the task's learning rate, the task's, and three times. Prioritization changes which rate is best, so that a
# comparison at one rate mostly measures that.
THREE_RATES = (1 / 3, 1.0, 3.0)

_AT_RATES = (
    "Each arm at its own best of the three learning rates, chosen on the even seeds and measured on the odd ones; and its "
    "mean over the three rates. A gain counts if it vanishes when the priorities are shuffled within the batch."
)

# Huber threshold and exponent of LAP for Atari; LAP's defaults are for continuous control.
DISCRETE_LAP = dict(scheme="lap", alpha=0.6, kappa=0.01)

NO_WEIGHTS = dict(beta_start=0.0, beta_end=0.0)
# The candidate for the defaults, from a first look at one learning rate.
CANDIDATE: dict[str, Any] = dict(epsilon=0.01, weight_normalization="mean", uniform_fraction=0.25)

SUITES = {
    # Networks and replay as of Young & Tian (2019), one gradient step for four steps of the environment as on Atari.
    "discrete": Suite(
        environments=("MinAtar/Breakout-v1", "MinAtar/Asterix-v1", "MinAtar/SpaceInvaders-v1"),
        variants={
            "DQN": Variant("DQN"),
            "PERDQN": Variant("PERDQN"),
            "PERDQN, Double Q, 3 steps": Variant("PERDQN", dict(double_q=True, n_steps=3)),
            "PERDQN, LAP": Variant("PERDQN", dict(replay_buffer_kwargs=DISCRETE_LAP)),
            # Why PERDQN is below DQN in this one: the paper's learning rate, and its Double Q without the three steps.
            "PERDQN, learning rate / 4": Variant("PERDQN", dict(learning_rate=6.25e-5), ("MinAtar/SpaceInvaders-v1",)),
            "PERDQN, Double Q": Variant("PERDQN", dict(double_q=True), ("MinAtar/SpaceInvaders-v1",)),
            # How much Double Q and 3 steps gain without prioritization.
            "uniform, Double Q, 3 steps": Variant(
                "PERDQN", dict(double_q=True, n_steps=3, replay_buffer_kwargs=dict(scheme="uniform"))
            ),
        },
        seeds=5,
        steps=300_000,
        n_envs=8,
        settings=dict(
            policy_kwargs=dict(net_arch=[128]),
            learning_rate=2.5e-4,
            batch_size=32,
            buffer_size=100_000,
            learning_starts=5_000,
            target_update_interval=1_000,
            train_freq=1,
            gradient_steps=2,
            exploration_fraction=1 / 3,
            exploration_final_eps=0.05,
        ),
        # A policy without randomness can keep a ball in the air for ever.
        env_kwargs=dict(max_episode_steps=2_500),
    ),
    # Settings of DQN in RL Zoo: a reward of -1 a step, and nothing else until the car, by chance, comes up the hill.
    "sparse": Suite(
        environments=("MountainCar-v0",),
        variants={
            "DQN": Variant("DQN"),
            "PERDQN": Variant("PERDQN"),
            "PERDQN, learning rate / 4": Variant("PERDQN", dict(learning_rate=1e-3)),
            # Which settings gain, and is the gain due to their priorities?
            "PERDQN, uniform": Variant("PERDQN", dict(replay_buffer_kwargs=dict(scheme="uniform"))),
            "PERDQN, LAP": Variant("PERDQN", dict(replay_buffer_kwargs=DISCRETE_LAP)),
            "PERDQN, candidate": Variant("PERDQN", dict(replay_buffer_kwargs=CANDIDATE)),
            "shuffled, PERDQN": Variant("PERDQN", dict(replay_buffer_kwargs=dict(scheme="shuffled proportional"))),
        },
        seeds=6,
        steps=120_000,
        n_evaluations=60,
        solved=-110.0,
        settings=dict(
            policy_kwargs=dict(net_arch=[256, 256]),
            learning_rate=4e-3,
            batch_size=128,
            buffer_size=10_000,
            gamma=0.98,
            learning_starts=1_000,
            target_update_interval=600,
            train_freq=16,
            gradient_steps=8,
            exploration_fraction=0.2,
            exploration_final_eps=0.07,
        ),
    ),
    "pairs": Suite(
        environments=("PairsTrading-v0",),
        variants={
            "SAC": Variant("SAC"),
            "PERSAC": Variant("PERSAC"),
            "PERSAC, LAP": Variant("PERSAC", dict(replay_buffer_kwargs=dict(scheme="lap"))),
            # Why PERSAC is below SAC: with beta = 1 the weights remove all of the bias towards large errors.
            "PERSAC, beta 1": Variant("PERSAC", dict(replay_buffer_kwargs=dict(beta_start=1.0))),
        },
        seeds=10,
        steps=40_000,
        n_envs=4,
        n_evaluations=20,
        n_episodes=50,
        episode_length=250,
        settings=dict(policy_kwargs=dict(net_arch=[64, 64]), learning_rate=1e-3),
    ),
    # Settings of Fujimoto et al. (2020), except for a tenth of the steps, 10,000 random steps in place of 25,000, and batches
    # of 100.
    "continuous": Suite(
        environments=("HalfCheetah-v5",),
        variants={
            "TD3": Variant("TD3"),
            "PERTD3": Variant("PERTD3"),
            "PERTD3, LAP": Variant("PERTD3", dict(replay_buffer_kwargs=dict(scheme="lap"))),
            "PERTD3, PAL": Variant("PERTD3", dict(replay_buffer_kwargs=dict(scheme="pal"))),
        },
        seeds=7,
        steps=100_000,
        n_episodes=10,
        n_evaluations=20,
        settings=dict(
            policy_kwargs=dict(net_arch=[256, 256]),
            learning_rate=3e-4,
            batch_size=100,
            learning_starts=10_000,
            action_noise=0.1,
        ),
    ),
}


def at_rates(variants: dict[str, Variant], learning_rate: float, rates: tuple[float, ...]) -> dict[str, Variant]:
    """
    Run each variant at several learning rates.

    :param variants: by name
    :param learning_rate: of the task
    :param rates: factors
    :return: each of the variants at each of the rates
    """
    return {
        named_at(name, rate): replace(variant, settings={**variant.settings, "learning_rate": learning_rate * rate})
        for name, variant in variants.items()
        for rate in rates
    }


def named_at(variant: str, rate: float) -> str:
    """Name a variant at a factor of the learning rate."""
    return f"{variant} @ {rate:.3g}"


def arm_of(name: str) -> str:
    """Name the arm of a variant: its name without the factor of the learning rate."""
    return name.rsplit(" @ ", 1)[0]


def _arms(algorithm: str, **buffer_kwargs: dict[str, Any]) -> dict[str, Variant]:
    """Prioritized variants by name, each with its settings of the buffer."""
    return {
        name.replace("_", " "): Variant(f"PER{algorithm}", dict(replay_buffer_kwargs=settings))
        for name, settings in buffer_kwargs.items()
    }


# Which settings gain. Goals that are reached by chance are the rare events here.
_BITS_ARMS = {
    "DQN": Variant("DQN"),
    **_arms("DQN", uniform=dict(scheme="uniform"), defaults={}, LAP=dict(scheme="lap")),
    # This twin draws as the stock class does. Its difference from the stratified twin is not a gain of prioritization.
    "uniform, not stratified": Variant("PERDQN", dict(replay_buffer_kwargs=dict(scheme="uniform", stratified=False))),
    **{
        f"epsilon {epsilon:g}, {normalization}": Variant(
            "PERDQN", dict(replay_buffer_kwargs=dict(epsilon=epsilon, weight_normalization=normalization))
        )
        for epsilon in (1e-6, 0.01, 0.1)
        for normalization in ("max", "mean")
        if (epsilon, normalization) != (1e-6, "max")  # the defaults
    },
    **{
        f"epsilon {epsilon:g}, no weights": Variant("PERDQN", dict(replay_buffer_kwargs=dict(epsilon=epsilon, **NO_WEIGHTS)))
        for epsilon in (1e-6, 0.01, 0.1)
    },
    "epsilon 0.01, mean, eta 0.1": Variant("PERDQN", dict(replay_buffer_kwargs={**CANDIDATE, "uniform_fraction": 0.1})),
    "epsilon 0.01, mean, eta 0.25": Variant("PERDQN", dict(replay_buffer_kwargs=CANDIDATE)),
    # The controls.
    "shuffled, LAP": Variant("PERDQN", dict(replay_buffer_kwargs=dict(scheme="shuffled lap"))),
    "shuffled, no weights": Variant("PERDQN", dict(replay_buffer_kwargs=dict(scheme="shuffled proportional", **NO_WEIGHTS))),
    "shuffled, epsilon 0.01, mean, eta 0.25": Variant(
        "PERDQN", dict(replay_buffer_kwargs=dict(scheme="shuffled proportional", **CANDIDATE))
    ),
}

_CHAIN_ARMS = {
    "DQN": Variant("DQN"),
    **_arms(
        "DQN",
        uniform=dict(scheme="uniform"),
        defaults={},
        LAP=dict(scheme="lap", kappa=0.01),
        no_weights=NO_WEIGHTS,
        candidate=CANDIDATE,
    ),
    "shuffled, defaults": Variant("PERDQN", dict(replay_buffer_kwargs=dict(scheme="shuffled proportional"))),
}

_PAIRS_ARMS = {
    "SAC": Variant("SAC"),
    **_arms(
        "SAC",
        uniform=dict(scheme="uniform"),
        defaults={},
        candidate=CANDIDATE,
        LAP=dict(scheme="lap"),
        defaults_and_uniform_actor=dict(actor_batch="uniform"),
        defaults_and_weighted_actor=dict(actor_batch="weighted"),
    ),
}

SUITES["bits-rates"] = Suite(
    endpoint="Success of the last 50 training episodes. " + _AT_RATES,
    environments=("BitFlipping-v0",),
    variants=at_rates(_BITS_ARMS, 2e-3, THREE_RATES),
    rates=THREE_RATES,
    seeds=20,
    steps=1_500,
    n_envs=2,
    n_evaluations=15,
    score="success",
    policy="MultiInputPolicy",
    # Those of SB3's own test of HER.
    settings=dict(
        replay_buffer_class="HerReplayBuffer",
        replay_buffer_kwargs=dict(n_sampled_goal=5, goal_selection_strategy="future"),
        train_freq=1,
        gradient_steps=2,
        learning_starts=20,
        exploration_final_eps=0.02,
        target_update_interval=100,
        batch_size=32,
        buffer_size=100_000,
        stats_window_size=50,
    ),
)
SUITES["chain-rates"] = Suite(
    endpoint="Steps until the way to the end is known. " + _AT_RATES,
    environments=("Chain-v0",),
    variants=at_rates(_CHAIN_ARMS, 1e-3, THREE_RATES),
    rates=THREE_RATES,
    seeds=20,
    steps=40_000,
    n_evaluations=160,
    n_episodes=1,
    solved=1.0,
    settings=dict(
        policy_kwargs=dict(net_arch=[64]),
        train_freq=8,
        learning_starts=500,
        exploration_fraction=0.5,
        exploration_final_eps=0.2,
        target_update_interval=500,
        batch_size=32,
        buffer_size=40_000,
        gamma=0.95,
    ),
)
SUITES["pairs-rates"] = replace(
    SUITES["pairs"],
    endpoint="Mean return of the last evaluations. " + _AT_RATES,
    variants=at_rates(_PAIRS_ARMS, 1e-3, THREE_RATES),
    rates=THREE_RATES,
)

_CONFIRMED = "On seeds that nothing was chosen on, does what won in bits-rates hold? "


def on_new_seeds(suite: Suite, *arms: str) -> Suite:
    """
    Make the suite that confirms a choice. Only the arms in question run again, to save time.

    :param suite: at several learning rates
    :param arms: of it; its first one runs in any case
    :return: these arms, at the same rates, on as many seeds, none of them the suite's
    """
    known = list(dict.fromkeys(map(arm_of, suite.variants)))
    if not set(arms) <= set(known):
        raise ValueError(f"arms must be of the suite, and {sorted(set(arms) - set(known))} are not")
    kept = {name: variant for name, variant in suite.variants.items() if arm_of(name) in (known[0], *arms)}
    return replace(suite, variants=kept, first_seed=1_000, endpoint=_CONFIRMED + suite.endpoint)


# The control of the defaults, which ran after all others, on the new seeds alone.
_BITS_CONTROL = at_rates(
    {"shuffled, defaults": Variant("PERDQN", dict(replay_buffer_kwargs=dict(scheme="shuffled proportional")))},
    2e-3,
    THREE_RATES,
)
SUITES["bits-confirmation"] = on_new_seeds(
    replace(SUITES["bits-rates"], variants={**SUITES["bits-rates"].variants, **_BITS_CONTROL}),
    *("uniform", "uniform, not stratified", "defaults", "LAP"),
    *("epsilon 1e-06, no weights", "epsilon 0.01, mean, eta 0.25"),
    *("shuffled, LAP", "shuffled, no weights", "shuffled, epsilon 0.01, mean, eta 0.25", "shuffled, defaults"),
)
# The other suites at three rates are confirmations themselves: nothing was chosen on their seeds.
SUITES.update(MEMORY_SUITES)


def register_environments() -> None:
    """Register the environments of the suites. Importing MinAtar does not register its own."""
    from minatar.gym import register_envs

    if "PairsTrading-v0" in gym.registry:
        return
    import rl_zoo3.import_envs  # noqa: F401  # registers environments without velocities

    register_envs()
    gym.register("PairsTrading-v0", PairsTradingEnv)
    gym.register("BitFlipping-v0", BitFlippingEnv, kwargs=dict(n_bits=10, continuous=False))
    gym.register("Chain-v0", ChainEnv)
    gym.register("Doors-v0", DoorsEnv)


def evaluation_steps(suite: Suite) -> list[int]:
    """List the numbers of environment steps at which a run is evaluated."""
    return [suite.steps * (i + 1) // suite.n_evaluations for i in range(suite.n_evaluations)]


def settings_of(suite: Suite, variant: str) -> dict[str, Any]:
    """Copy the settings of the suite, with the changes of a variant. SAC writes into ``policy_kwargs``, so copy these, too."""
    changed = suite.variants[variant].settings
    settings = {**suite.settings, **changed}
    if "replay_buffer_kwargs" in suite.settings:
        settings["replay_buffer_kwargs"] = {
            **suite.settings["replay_buffer_kwargs"],
            **changed.get("replay_buffer_kwargs", {}),
        }
    return copy.deepcopy(settings)


def make_env(suite: Suite, environment: str, variant: Variant, n_envs: int, seed: int | None = None) -> VecEnv:
    """Make the environments of a variant, without VecNormalize."""
    env = make_vec_env(environment, n_envs, seed=seed, env_kwargs=suite.env_kwargs)
    return env if variant.n_frames == 1 else VecFrameStack(env, variant.n_frames)


def make_model(suite: Suite, environment: str, name: str, seed: int) -> Any:
    """Make the model of a run, with its training environments."""
    variant, settings = suite.variants[name], settings_of(suite, name)
    env = make_env(suite, environment, variant, variant.n_envs or suite.n_envs, seed)
    if variant.normalize:
        env = VecNormalize(env, gamma=settings["gamma"])
    if "action_noise" in settings:
        n_actions = env.action_space.shape[0]
        settings["action_noise"] = NormalActionNoise(np.zeros(n_actions), np.full(n_actions, settings["action_noise"]))
    for key in ("learning_rate", "clip_range"):
        if str(settings.get(key)).startswith("lin_"):
            settings[key] = LinearSchedule(float(settings[key].removeprefix("lin_")), 0.0, 1.0)
    if "activation_fn" in settings.get("policy_kwargs", {}):
        settings["policy_kwargs"]["activation_fn"] = getattr(nn, settings["policy_kwargs"]["activation_fn"])
    is_ours = variant.algorithm in sb3_per.__all__
    if "replay_buffer_class" in settings:
        stock = getattr(stable_baselines3, settings["replay_buffer_class"])
        settings["replay_buffer_class"] = PRIORITIZED_CLASSES[stock] if is_ours else stock
    if is_ours and "replay_buffer_kwargs" in settings:
        settings["replay_buffer_kwargs"] = with_control(settings["replay_buffer_kwargs"])
    packages = (sb3_per,) if is_ours else (stable_baselines3, sb3_contrib)
    (algorithm,) = (getattr(package, variant.algorithm) for package in packages if hasattr(package, variant.algorithm))
    return algorithm(variant.policy or suite.policy, env, seed=seed, **settings)


def with_control(buffer_kwargs: dict[str, Any]) -> dict[str, Any]:
    """
    Make the scheme of a control, which has a name here, e.g. ``"shuffled lap"``, so that settings are text and numbers.

    :param buffer_kwargs: ``replay_buffer_kwargs``, whose scheme may have such a name
    :return: the same, with a scheme object in place of such a name
    """
    first, _, scheme = buffer_kwargs.get("scheme", "").partition(" ")
    return control_of({**buffer_kwargs, "scheme": scheme}) if first == "shuffled" else buffer_kwargs


def train(suite: Suite, environment: str, variant: str, seed: int) -> dict[str, Any]:
    """
    Train and evaluate one run.

    :return: mean return of the deterministic policy by step of the environment; empty after a run that was solved
    """
    register_environments()
    model = make_model(suite, environment, variant, seed)
    test_env = make_env(suite, environment, suite.variants[variant], suite.n_episodes)
    if suite.variants[variant].normalize:
        test_env = VecNormalize(test_env, training=False, norm_reward=False)
    returns: dict[str, Any] = dict.fromkeys(map(str, evaluation_steps(suite)), "")
    pending = evaluation_steps(suite)

    def evaluate(*_: Any) -> bool:
        if model.num_timesteps < pending[0]:
            return True
        if suite.score == "success":
            mean = float(np.mean(model.ep_success_buffer)) if model.ep_success_buffer else 0.0
        else:
            sync_envs_normalization(model.get_env(), test_env)
            test_env.seed(EVALUATION_SEED)
            mean = float(np.mean(evaluate_policy(model, test_env, suite.n_episodes, deterministic=True)[0]))
        returns[str(pending.pop(0))] = round(mean, 4)
        return bool(pending) and (suite.solved is None or mean < suite.solved)

    model.learn(suite.steps, callback=evaluate)
    return returns


def fingerprint(suite: Suite, variant: str) -> str:
    """Hash everything that a run depends on. A run with other settings has another hash."""
    made = suite.variants[variant]
    asked = [
        made.algorithm,
        settings_of(suite, variant),
        suite.steps,
        made.n_envs or suite.n_envs,
        suite.n_evaluations,
        suite.n_episodes,
        suite.env_kwargs,
        suite.solved,
    ]
    if (suite.policy, suite.score) != ("MlpPolicy", "return"):
        asked += [suite.policy, suite.score]
    if (made.policy, made.n_frames, made.normalize) != (None, 1, False):
        asked += [made.policy, made.n_frames, made.normalize]
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:8]


def seeds_of(suite: Suite) -> range:
    """List the seeds of each variant in each environment."""
    return range(suite.first_seed, suite.first_seed + suite.seeds)


def variants_in(suite: Suite, environment: str) -> list[str]:
    """List the variants that run in this environment."""
    return [name for name, variant in suite.variants.items() if environment in (variant.environments or suite.environments)]


def jobs_of(suite: Suite) -> list[Job]:
    """List all runs of a suite, seed by seed, so that a stopped campaign has compared all variants on some seeds."""
    return [
        (
            dict(environment=environment, variant=variant, seed=seed, settings=fingerprint(suite, variant)),
            (suite, environment, variant, seed),
        )
        for seed in seeds_of(suite)
        for environment in suite.environments
        for variant in variants_in(suite, environment)
    ]


def suites_named(wanted: str) -> dict[str, Suite]:
    """Find the suite of this name, or all suites whose name contains it."""
    return {wanted: SUITES[wanted]} if wanted in SUITES else {name: suite for name, suite in SUITES.items() if wanted in name}


def quick(suite: Suite) -> Suite:
    """Shorten a suite to a thousandth of the steps and two seeds."""
    steps = max(suite.steps // 1000, 40 * suite.n_envs)
    # With hindsight nothing can be drawn before the first episode has ended.
    settings = {**suite.settings, "learning_starts": 20, "buffer_size": 1_000} if suite.settings else {}
    return replace(suite, seeds=2, steps=steps, settings=settings, n_evaluations=4, n_episodes=2)


def main(arguments: list[str] | None = None) -> None:
    """Run what is missing of the chosen suites."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help=f"a suite, or a part of several names: {', '.join(SUITES)}")
    parser.add_argument("--workers", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the CSV files, one a suite")
    parser.add_argument("--quick", action="store_true", help="a thousandth of the steps, to try the script; needs --out")
    args = parser.parse_args(arguments)
    if args.quick and args.out == OUT:
        parser.error("--quick needs --out: its runs do not belong to the evidence")
    for name, suite in suites_named(args.only).items():
        jobs = jobs_of(quick(suite) if args.quick else suite)
        run_missing(args.out / f"{name}.csv", jobs, train, args.workers)


if __name__ == "__main__":
    main()
