"""
Train and evaluate the suites of `suites.yml`; `report.py` makes tables and figures from the files that this script writes.

    make evidence                                                      # what is missing, and the report
    python benchmarks/learning.py --only discrete --workers 2          # this suite, or those whose name contains this
    python benchmarks/learning.py --only sparse --quick --out runs/try # a thousandth of the steps, to try it
"""

import copy
import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import sb3_contrib
import stable_baselines3
import torch as th
from campaign import OUT, hash_of, options, selected
from chain_env import ChainEnv
from doors_env import DoorsEnv
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize, sync_envs_normalization
from suites import SUITES, Suite, Variant
from torch import nn

import sb3_per
from sb3_per.buffers.counterparts import PRIORITIZED_CLASSES
from sb3_per.compare.campaign import Job, run_missing
from sb3_per.compare.controls import control_of

# Seed of the first evaluation environment; the others have the next ones. They are the same at every evaluation, and far from
# the training seeds.
EVALUATION_SEED = 1_000_000


def register_environments() -> None:
    """Register the environments of the suites. Importing MinAtar does not register its own."""
    from minatar.gym import register_envs

    if "PairsTrading-v0" in gym.registry:
        return
    import rl_zoo3.import_envs  # noqa: F401  # registers environments without velocities

    sys.path.append(str(Path(__file__).resolve().parents[1] / "examples"))
    from pairs_trading_env import PairsTradingEnv

    register_envs()
    gym.register("PairsTrading-v0", PairsTradingEnv)
    gym.register("BitFlipping-v0", BitFlippingEnv, kwargs=dict(n_bits=10, continuous=False))
    gym.register("Chain-v0", ChainEnv)
    gym.register("Doors-v0", DoorsEnv)


def evaluation_steps(suite: Suite) -> list[int]:
    return [suite.steps * (i + 1) // suite.n_evaluations for i in range(suite.n_evaluations)]


def settings_of(suite: Suite, variant: str) -> dict[str, Any]:
    """Copy the settings of the suite, with the changes of a variant. SAC writes into ``policy_kwargs``, so copy these, too."""
    changed = suite.variants[variant].settings
    settings = {**suite.settings, **changed}
    if "replay_buffer_kwargs" in suite.settings:
        settings["replay_buffer_kwargs"] = suite.settings["replay_buffer_kwargs"] | changed.get("replay_buffer_kwargs", {})
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
    packages = (sb3_per, stable_baselines3, sb3_contrib)
    algorithm = next(getattr(package, variant.algorithm) for package in packages if hasattr(package, variant.algorithm))
    return algorithm(variant.policy or suite.policy, env, seed=seed, **settings)


def with_control(buffer_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Make the scheme of a control, which has a name here, e.g. ``"shuffled lap"``, so that settings are text and numbers."""
    first, _, scheme = buffer_kwargs.get("scheme", "").partition(" ")
    return control_of({**buffer_kwargs, "scheme": scheme}) if first == "shuffled" else buffer_kwargs


def dqn(arms: dict[str, dict[str, Any]], arm: str, env: VecEnv, **settings: Any) -> Any:
    """Make PERDQN with the replay settings of an arm, or DQN for the arm ``"stock"``."""
    th.set_num_threads(1)
    is_ours = arm != "stock"
    replay = dict(replay_buffer_kwargs=with_control(arms[arm])) if is_ours else {}
    algorithm = sb3_per.PERDQN if is_ours else stable_baselines3.DQN
    return algorithm("MlpPolicy", env, device="cpu", **replay, **settings)


def returns_of(model: Any, test_env: VecEnv, n_episodes: int) -> list[float]:
    """Play episodes with the deterministic policy, the same every time. Return their returns."""
    test_env.seed(EVALUATION_SEED)
    returns: Any = evaluate_policy(model, test_env, n_episodes, return_episode_rewards=True)[0]
    return returns


def random_policy(env: VecEnv, seed: int) -> Any:
    """Make what plays with random actions, in place of a model."""
    env.action_space.seed(seed)
    actions = lambda: np.array([env.action_space.sample() for _ in range(env.num_envs)])  # noqa: E731
    return SimpleNamespace(predict=lambda *_, **__: (actions(), None))


def evaluations(model: Any, steps: Sequence[int], score: Callable[[], float], until: float = np.inf) -> list[float]:
    """Train for the last of these numbers of steps, and score at each of them. The first score of ``until`` ends the run."""
    scores: list[float] = []

    def evaluate(*_: Any) -> bool:
        if model.num_timesteps >= steps[len(scores)]:
            scores.append(score())
            return len(scores) < len(steps) and scores[-1] < until
        return True

    model.learn(steps[-1], callback=evaluate)
    return scores


def train(suite: Suite, environment: str, variant: str, seed: int) -> dict[str, Any]:
    """
    Train and evaluate one run. Return the mean return of the deterministic policy by step; empty after a run that was solved.
    """
    register_environments()
    model = make_model(suite, environment, variant, seed)
    test_env = make_env(suite, environment, suite.variants[variant], suite.n_episodes)
    if suite.variants[variant].normalize:
        test_env = VecNormalize(test_env, training=False, norm_reward=False)

    def score() -> float:
        if suite.score == "success":
            return float(np.mean(model.ep_success_buffer)) if model.ep_success_buffer else 0.0
        sync_envs_normalization(model.get_env(), test_env)
        return float(np.mean(returns_of(model, test_env, suite.n_episodes)))

    steps = evaluation_steps(suite)
    scores = evaluations(model, steps, score, np.inf if suite.solved is None else suite.solved)
    return {str(step): "" if s is None else round(s, 4) for step, s in itertools.zip_longest(steps, scores)}


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
    return hash_of(asked)


def seeds_of(suite: Suite) -> range:
    return range(suite.first_seed, suite.first_seed + suite.seeds)


def variants_in(suite: Suite, environment: str) -> list[str]:
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


def quick(suite: Suite) -> Suite:
    """Shorten a suite to a thousandth of the steps and two seeds."""
    steps = max(suite.steps // 1000, 40 * suite.n_envs)
    # With hindsight nothing can be drawn before the first episode has ended.
    settings = {**suite.settings, "learning_starts": 20, "buffer_size": 1_000} if suite.settings else {}
    return replace(suite, seeds=2, steps=steps, settings=settings, n_evaluations=4, n_episodes=2)


def main(arguments: list[str] | None = None) -> None:
    parser = options(__doc__, list(SUITES))
    parser.add_argument("--quick", action="store_true", help="a thousandth of the steps, to try the script; needs --out")
    args = parser.parse_args(arguments)
    if args.quick and args.out == OUT:
        parser.error("--quick needs --out: its runs do not belong to the evidence")
    for name in selected(list(SUITES), args.only):
        jobs = jobs_of(quick(SUITES[name]) if args.quick else SUITES[name])
        run_missing(args.out / f"{name}.csv", jobs, train, args.workers, args.deadline)


if __name__ == "__main__":
    main()
