"""
MinAtar with a modern DQN: does prioritized replay still help once Double Q and 3-step returns are there?

Five games, 300,000 steps each, with the settings of the suite `discrete` in suites.yml; every arm has Double Q and 3 steps.
Rewards are common here; dose_response.py is about data that hardly ever have one.

What was declared before the first run: declared.md.
"""

from dataclasses import replace
from typing import Any

from stable_baselines3.common.evaluation import evaluate_policy

from . import learning
from .campaign import Campaign, Contrast, mean_of_last_fifth
from .suites import DISCRETE_LAP, SUITES, UNIFORM, Variant, at_rates, named_at

GAMES = tuple(f"MinAtar/{game}-v1" for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders"))
ARMS = {
    name: Variant("PERDQN", dict(double_q=True, n_steps=3, replay_buffer_kwargs=settings))
    for name, settings in {"uniform": UNIFORM, "defaults": {}, "LAP": DISCRETE_LAP}.items()
}
RANDOM = "random"
RATES = (0.5, 1.0, 2.0)

_DISCRETE = SUITES["discrete"]
SUITE = replace(
    _DISCRETE,
    environments=GAMES,
    variants=at_rates(ARMS, _DISCRETE.settings["learning_rate"], RATES),
    settings={**_DISCRETE.settings, "policy_kwargs": dict(net_arch=[128], optimizer_kwargs=dict(fused=True))},
)


def train(game: str, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """Train one run, or evaluate a random policy as often, which shows whether a game was learned. Return returns by step."""
    if arm != RANDOM:
        return learning.train(SUITE, game, named_at(arm, rate), seed)
    learning.register_environments()
    env = learning.make_env(SUITE, game, SUITE.variants[named_at("uniform", 1.0)], SUITE.n_episodes)
    env.seed(learning.EVALUATION_SEED)
    policy = learning.random_policy(env, seed)
    play = lambda: round(float(evaluate_policy(policy, env, SUITE.n_episodes)[0]), 4)  # noqa: E731
    return {str(step): play() for step in learning.evaluation_steps(SUITE)}


def name_of(game: str, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    variant = RANDOM if arm == RANDOM else named_at(arm, rate)
    settings = "" if arm == RANDOM else learning.fingerprint(SUITE, variant)
    return dict(environment=game, variant=variant, seed=seed, settings=settings)


CAMPAIGN = Campaign(
    name="modern-dqn",
    endpoint="Mean return of the last three evaluations, in units of the twin's mean in the game.",
    tasks=GAMES,
    arms=dict.fromkeys(ARMS, ("",)),
    rates=RATES,
    choosing=range(100, 101),
    reporting=range(200, 204),  # time was over
    train=train,
    score=mean_of_last_fifth,
    primary=(Contrast("defaults", "uniform"), Contrast("LAP", "uniform")),
    growth=0,
    chooses_by_task=False,
    is_relative=True,
    was_unpaired=True,
    digits=(2, 3),
    others=tuple((game, RANDOM, "", 1.0, 0) for game in GAMES),
    name_of=name_of,
)
