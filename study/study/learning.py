"""Train and evaluate the suites of `suites.yml`, and describe them as campaigns."""

import copy
import functools
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
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.noise import NormalActionNoise
from stable_baselines3.common.utils import LinearSchedule
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize, sync_envs_normalization
from torch import nn

import sb3_per
from sb3_per.buffers import PRIORITIZED_CLASSES
from sb3_per.compare.controls import control_of

from .campaign import Campaign, Contrast, Row, evaluations_of, hash_of, last, mean_of_last_fifth, steps_until
from .environments import ChainEnv, DoorsEnv
from .suites import SUITES, Suite, Variant, arm_of, named_at

# Seed of the first evaluation environment; the others have the next ones. They are the same at every evaluation, and far from
# the training seeds.
EVALUATION_SEED = 1_000_000


def register_environments() -> None:
    """Register the environments of the suites. Importing MinAtar does not register its own."""
    from minatar.gym import register_envs

    if "PairsTrading-v0" in gym.registry:
        return
    import rl_zoo3.import_envs  # noqa: F401  # registers environments without velocities

    sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))
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


def share_of_random_steps(n_steps: int, all_steps: int, settings: dict[str, Any]) -> float:
    """
    Compute which share of the first steps of DQN has a random action, in expectation: all before ``learning_starts``, then as
    many as epsilon says, which falls over a part of all steps that the run was planned for.
    """
    steps, final = np.arange(n_steps), settings["exploration_final_eps"]
    passed = np.minimum(steps / (settings["exploration_fraction"] * all_steps), 1.0)
    epsilons = 1.0 + passed * (final - 1.0)
    return float(np.where(steps < settings["learning_starts"], 1.0, epsilons).mean())


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
    asked = [made.algorithm, settings_of(suite, variant), suite.steps, made.n_envs or suite.n_envs]
    asked += [suite.n_evaluations, suite.n_episodes, suite.env_kwargs, suite.solved]
    if (suite.policy, suite.score) != ("MlpPolicy", "return"):
        asked += [suite.policy, suite.score]
    if (made.policy, made.n_frames, made.normalize) != (None, 1, False):
        asked += [made.policy, made.n_frames, made.normalize]
    return hash_of(asked)


def references_of(suite: Suite) -> dict[str, str]:
    """Map each arm to the one that it is compared with, if that is another arm."""
    twins = {arm_of(name): variant.twin or suite.twin for name, variant in suite.variants.items()}
    first = next(iter(twins))
    found = {arm: twin or first for arm, twin in twins.items()}
    return {arm: other for arm, other in found.items() if other in twins and other != arm}


def run_of(suite: Suite, task: Any, arm: str) -> tuple[str, str]:
    """Return environment and variant of a task and an arm: tasks are learning rates where a suite has several."""
    return (suite.environments[0], named_at(arm, task)) if len(suite.rates) > 1 else (task, arm)


def train_task(suite: Suite, task: Any, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    return train(suite, *run_of(suite, task, arm), seed)


def campaign_of(name: str, suite: Suite) -> Campaign:
    """Describe the runs of a suite and what is compared. All arms run at all of its learning rates."""
    arms, at_rates = list(dict.fromkeys(map(arm_of, suite.variants))), len(suite.rates) > 1
    overs = ("best", "mean") if at_rates else ("each", "mean")[: len(suite.environments)]
    # "shuffled, no weights" is the control of "no weights", and of all arms that end with ", no weights".
    shuffled = [arm for arm in arms if arm.startswith("shuffled, ")]
    controls = {a: control for a in arms for control in shuffled if f", {a}".endswith(control.removeprefix("shuffled"))}
    other_scores: dict[str, Callable[[Row], float]] = {}
    score: Callable[[Row], float] = last if suite.score == "success" else mean_of_last_fifth
    if suite.solved is not None:
        score = lambda row: -float(steps_until(suite.solved, row))  # type: ignore[arg-type]  # noqa: E731
    if suite.episode_length:
        episodes = lambda row: steps_until(0.95 * mean_of_last_fifth(row), row) / suite.episode_length  # noqa: E731
        other_scores["episodes until 95% of the run's own score"] = lambda row: -episodes(row)

    def name_of(task: Any, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
        environment, variant = run_of(suite, task, arm)
        return dict(environment=environment, variant=variant, seed=seed, settings=fingerprint(suite, variant))

    return Campaign(
        name=name,
        endpoint=suite.endpoint,
        tasks=suite.rates if at_rates else suite.environments,
        kind="rates" if at_rates else "tasks",
        unit="times the rate" if at_rates else "",
        arms=dict.fromkeys(arms, ("",)),
        partial={arm: made.environments for arm, made in suite.variants.items() if made.environments},
        rates=(1.0,),
        choosing=range(0),
        reporting=range(suite.first_seed, suite.first_seed + suite.seeds),
        train=functools.partial(train_task, suite),
        score=score,
        primary=tuple(Contrast(*pair, over) for over in overs for pair in references_of(suite).items()),
        secondary=tuple(Contrast(*pair, over) for over in overs for pair in controls.items() if pair[0] not in shuffled),
        title="Against the reference",
        about_seeds=f"; {suite.steps:,} steps" + ". The even seeds chose the best rates" * at_rates,
        other_scores=other_scores,
        is_cost=suite.solved is not None,
        is_iqm=True,
        is_relative=len(suite.environments) > 1,
        was_unpaired=True,
        solved=lambda row: suite.solved is None or any(each >= suite.solved for each in evaluations_of(row).values()),
        listed=suite.listed,
        digits=(suite.digits, suite.digits),
        name_of=name_of,
        figure="rates" if at_rates else "runs" if suite.solved is not None else "curves" if suite.listed is None else "",
        cap=suite.steps,
    )


CAMPAIGNS = {name: campaign_of(name, suite) for name, suite in SUITES.items()}
# The largest rate is the best one of both arms on the 20 seeds of bits-rates, which are none of these. The declared test of
# best rates has half of the seeds.
CAMPAIGNS["bits-confirmation"] = replace(
    CAMPAIGNS["bits-confirmation"], undeclared=(Contrast("defaults", "uniform", "largest"),)
)
_CHAIN = SUITES["chain-rates"]
CAMPAIGNS["chain-rates"] = replace(
    CAMPAIGNS["chain-rates"],
    shares={
        "Share of steps with a random action until then": lambda row: share_of_random_steps(
            steps_until(_CHAIN.solved, row),  # type: ignore[arg-type]
            _CHAIN.steps,
            _CHAIN.settings,
        )
    },
)
