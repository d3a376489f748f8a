"""
MinAtar with a modern DQN: does prioritized replay still help once Double Q and 3-step returns are there?

    python benchmarks/modern_dqn.py                  # what is missing; then report.py
    python benchmarks/modern_dqn.py --seconds 600    # start no run after ten minutes; call again to continue

Five games, 300,000 steps each, with the settings of the suite `discrete` in suites.yml; every arm has Double Q and 3 steps.
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

from dataclasses import replace
from typing import Any

import learning
from campaign import Campaign, Contrast, main, mean_of_last_fifth
from stable_baselines3.common.evaluation import evaluate_policy
from suites import DISCRETE_LAP, SUITES, UNIFORM, Variant, at_rates, named_at

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
    figure="relative",
)

if __name__ == "__main__":
    main([CAMPAIGN])
