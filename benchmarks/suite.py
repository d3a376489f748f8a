"""What the campaign of `learning.py` is made of."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Variant:
    """
    What a suite compares.

    :param algorithm: a class of Stable-Baselines3 or of this package
    :param settings: what it changes in those of the suite
    :param environments: where it runs; None is everywhere
    :param policy: name of the policy class; None is that of the suite
    :param n_envs: environments to train in; None is as many as in the suite
    :param n_frames: observations that are stacked
    :param normalize: observations and rewards, by VecNormalize
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
    :param environments: ids, as for ``gym.make``
    :param variants: by name; the first is what the others are compared with
    :param seeds: runs of each variant in each environment
    :param first_seed: of those runs, the others follow; even, so that the halves of the seeds are the even and the odd ones
    :param steps: environment steps of a run, over all of its environments
    :param settings: of all variants: constructor arguments, ``action_noise`` as the standard deviation of normal noise, and
        ``learning_rate`` as ``"lin_0.001"`` where it falls to 0
    :param n_envs: environments to train in
    :param n_evaluations: of a run, in equal distances, the last at its end
    :param n_episodes: of an evaluation
    :param env_kwargs: of training and evaluation environments
    :param solved: mean return that ends a run; None trains on
    :param episode_length: in steps, where it is fixed and the report shall count episodes
    :param policy: name of the policy class
    :param score: of a run: ``"return"``, the mean return of evaluation episodes; ``"success"``, the share of the newest
        training episodes that reached their goal
    :param rates: factors of the learning rate; every variant runs at each of them
    :param endpoint: what was to be compared, written down before the runs
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
