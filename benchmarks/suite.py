"""Suites and variants of the campaign of `learning.py`."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """
    One arm of a suite.

    :param algorithm: name of a class of Stable-Baselines3 or of this package
    :param settings: settings that differ from those of the suite
    :param environments: environments to run in; None: all
    :param policy: name of the policy class; None: that of the suite
    :param n_envs: number of environments to train in; None: that of the suite
    :param n_frames: number of stacked observations
    :param normalize: whether VecNormalize scales observations and rewards
    """

    algorithm: str
    settings: dict[str, Any] = field(default_factory=dict)
    environments: tuple[str, ...] | None = None
    policy: str | None = None
    n_envs: int | None = None
    n_frames: int = 1
    normalize: bool = False


@dataclass(frozen=True)
class Suite:
    """
    Variants that are trained on the same task.

    :param environments: ids of ``gym.make``
    :param variants: arms by name; the others are compared with the first
    :param seeds: number of runs of each variant in each environment
    :param first_seed: first seed of those runs; even, so that the halves of the seeds are the even and the odd ones
    :param steps: environment steps of a run, in all of its environments together
    :param settings: constructor arguments of all variants, ``action_noise`` as the standard deviation of normal noise, and
        ``learning_rate`` as ``"lin_0.001"`` where it falls to 0
    :param n_envs: number of environments to train in
    :param n_evaluations: number of evaluations of a run, evenly spaced, the last at its end
    :param n_episodes: number of episodes of an evaluation
    :param env_kwargs: arguments of training and evaluation environments
    :param solved: mean return that ends a run; None: no run ends early
    :param episode_length: length of an episode in steps, if the report counts episodes
    :param policy: name of the policy class
    :param score: score of a run: ``"return"``, the mean return of evaluation episodes; ``"success"``, the share of the newest
        training episodes that reached their goal
    :param rates: factors of the learning rate; every variant runs at each
    :param endpoint: comparison, written down before the runs
    """

    environments: tuple[str, ...]
    variants: dict[str, Variant]
    seeds: int
    steps: int
    settings: dict[str, Any]
    first_seed: int = 0
    n_envs: int = 1
    n_evaluations: int = 15
    n_episodes: int = 20
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    solved: float | None = None
    episode_length: int | None = None
    policy: str = "MlpPolicy"
    score: str = "return"
    rates: tuple[float, ...] = (1.0,)
    endpoint: str = ""
