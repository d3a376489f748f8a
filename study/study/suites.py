"""
The form of `suites.yml`: what the suites of `learning.py` compare. Tasks, arms, settings, seeds and endpoints are there.

Importing this module registers no environment, see :func:`learning.register_environments`.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Variant:
    algorithm: str  # name of a class of Stable-Baselines3 or of this package
    settings: dict[str, Any] = field(default_factory=dict)  # settings that differ from those of the suite
    environments: tuple[str, ...] | None = None  # environments to run in; None: all
    policy: str | None = None  # name of the policy class; None: that of the suite
    n_envs: int | None = None  # number of environments to train in; None: that of the suite
    n_frames: int = 1  # number of stacked observations
    normalize: bool = False  # whether VecNormalize scales observations and rewards
    twin: str | None = None  # variant that it is compared with; None: that of the suite


@dataclass(frozen=True)
class Suite:
    """Variants that are trained on the same task."""

    environments: tuple[str, ...]  # ids of ``gym.make``
    variants: dict[str, Variant]  # arms by name
    seeds: int  # number of runs of each variant in each environment
    steps: int  # environment steps of a run, in all of its environments together
    # constructor arguments of all variants, ``action_noise`` as the standard deviation of normal noise, and ``learning_rate``
    # as ``"lin_0.001"`` where it falls to 0
    settings: dict[str, Any]
    first_seed: int = 0  # first seed of those runs; even, so that the halves of the seeds are the even and the odd ones
    n_envs: int = 1  # number of environments to train in
    n_evaluations: int = 15  # number of evaluations of a run, evenly spaced, the last at its end
    n_episodes: int = 20  # number of episodes of an evaluation
    env_kwargs: dict[str, Any] = field(default_factory=dict)  # arguments of training and evaluation environments
    solved: float | None = None  # mean return that ends a run; None: no run ends early
    episode_length: int | None = None  # length of an episode in steps, if the report counts episodes
    policy: str = "MlpPolicy"  # name of the policy class
    # score of a run: ``"return"``, the mean return of evaluation episodes; ``"success"``, the share of the newest training
    # episodes that reached their goal
    score: str = "return"
    rates: tuple[float, ...] = (1.0,)  # factors of the learning rate; every variant runs at each
    endpoint: str = ""  # score of a run in words
    digits: int = 2  # digits after the point of scores
    listed: float | None = None  # score of a solved run, where the report lists all seeds
    # variant that the others are compared with, or arm of it at several rates; None: the first variant
    twin: str | None = None


def named_at(variant: str, rate: float) -> str:
    return f"{variant} @ {rate:.3g}"


def arm_of(name: str) -> str:
    """Name the arm of a variant: its name without the factor of the learning rate."""
    return name.rsplit(" @ ", 1)[0]


def at_rates(variants: dict[str, Variant], learning_rate: float, rates: tuple[float, ...]) -> dict[str, Variant]:
    """Run each variant at several factors of the task's learning rate."""
    return {
        named_at(name, rate): replace(variant, settings={**variant.settings, "learning_rate": learning_rate * rate})
        for name, variant in variants.items()
        for rate in rates
    }


def variant_of(made: str | dict[str, Any]) -> Variant:
    """Make a variant of an entry of the file: the name of an algorithm, or parameters of :class:`Variant` and ``buffer``."""
    if isinstance(made, str):
        return Variant(made)
    made = dict(made)
    if "buffer" in made:
        made["settings"] = {**made.get("settings", {}), "replay_buffer_kwargs": made.pop("buffer")}
    return Variant(**made)


def suite_of(made: dict[str, Any]) -> Suite:
    """
    Make a suite of an entry of the file: parameters of :class:`Suite`, and ``kept``, the variants that run.

    With a ``base_rate``, it runs at three learning rates. Prioritization changes which rate is best, so that a comparison at
    one rate mostly measures that.
    """
    made = dict(made)
    variants = {name: variant_of(each) for name, each in made.pop("variants").items()}
    variants = {name: variants[name] for name in made.pop("kept", variants)}
    if "base_rate" in made:
        variants = at_rates(variants, made.pop("base_rate"), THREE_RATES)
        made |= dict(endpoint=f"{made['endpoint']} {_AT_RATES}", rates=THREE_RATES)
    return Suite(variants=variants, **{**made, "environments": tuple(made["environments"])})


THREE_RATES = (1 / 3, 1.0, 3.0)  # in units of the task's learning rate
_AT_RATES = (
    "Written down before the runs: each arm at its own best of the three learning rates, chosen on the even seeds and "
    "measured on the odd ones; and its mean over the three rates. A gain counts if it vanishes when priorities are shuffled."
)
_FILE = yaml.safe_load(Path(__file__).with_suffix(".yml").read_text())
SUITES = {name: suite_of(made) for name, made in _FILE.items() if not name.startswith(".")}
UNIFORM, DISCRETE_LAP, NO_WEIGHTS = (_FILE[name] for name in (".uniform", ".discrete_lap", ".no_weights"))
