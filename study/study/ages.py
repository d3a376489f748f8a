"""
Draws by age, and priorities times age: do they help where rewards are common?

Korniak et al. 2026 (arXiv 2605.10236) find in five suites that replay pays which is not uniform where few transitions are
replayed for each step of the environment, and favours recent ones; their draw is a truncated geometric distribution over age,
here ``scheme="uniform", age_decay=c``. The product of priorities and age is ``age_decay=c`` alone. In a pilot with seeds 300
to 302, with decay 3 and one rate, age had a fifth more return than the twin in SpaceInvaders and Breakout, the product a third
more, and age a tenth less in Freeway. No run of the pilot is reported.

What was declared before the first run: declared.md.
"""

from dataclasses import replace
from typing import Any

from . import learning, modern_dqn
from .campaign import Campaign, Contrast, mean_of_all, mean_of_last_fifth
from .suites import Suite, Variant

GAMES = ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
DECAYS = ("decay 1", "decay 3")
ARMS: dict[str, tuple[str, ...]] = {"uniform": ("",), "age": DECAYS, "defaults": ("",), "defaults times age": DECAYS}
SUITES: dict[str, Suite] = {
    **{game: replace(modern_dqn.SUITE, environments=(f"MinAtar/{game}-v1",)) for game in GAMES},
    "Pendulum": replace(
        learning.SUITES["pairs"], environments=("Pendulum-v1",), steps=10_000, n_envs=1, n_episodes=20, episode_length=None
    ),
    "pairs": learning.SUITES["pairs"],
}


def buffer_settings(arm: str, option: str) -> dict[str, Any]:
    scheme = {} if arm.startswith("defaults") else dict(scheme="uniform")
    return scheme | (dict(age_decay=float(option.removeprefix("decay "))) if option else {})


def train(task: str, arm: str, option: str, rate: float, seed: int) -> dict[str, Any]:
    """Train and evaluate one run. The rate is a factor of the task's. Return the mean return by step of the environment."""
    suite, is_game = SUITES[task], task in GAMES
    settings: dict[str, Any] = dict(double_q=True, n_steps=3) if is_game else {}
    settings |= dict(learning_rate=rate * suite.settings["learning_rate"], replay_buffer_kwargs=buffer_settings(arm, option))
    variant = Variant("PERDQN" if is_game else "PERSAC", settings)
    return learning.train(replace(suite, variants={arm: variant}), suite.environments[0], arm, seed)


def settings_of(tasks: tuple[str, ...]) -> dict[str, Any]:
    suites = {task: SUITES[task] for task in tasks}
    numbers = {k: [s.steps, s.n_envs, s.n_evaluations, s.n_episodes, s.env_kwargs, s.settings] for k, s in suites.items()}
    return dict(suites=numbers, arms={f"{arm} {option}": buffer_settings(arm, option) for arm in ARMS for option in ARMS[arm]})


GAMES_CAMPAIGN = Campaign(
    name="ages",
    endpoint="Mean return over all evaluations, in units of the twin's mean in the game.",
    unit="",
    tasks=GAMES,
    arms=ARMS,
    rates=(0.5, 1.0),
    choosing=range(400, 402),
    reporting=range(500, 510),
    settings=settings_of(GAMES),
    train=train,
    score=mean_of_all,
    primary=(Contrast("age", "uniform", "pairs"), Contrast("defaults times age", "uniform", "pairs")),
    secondary=(
        Contrast("defaults times age", "age", "pairs"),
        Contrast("defaults times age", "defaults", "pairs"),
        Contrast("defaults", "uniform", "pairs"),
    ),
    by_task=tuple(Contrast(arm, "uniform", "each") for arm in ARMS if arm != "uniform"),  # not declared
    # The declared test counts what differs between the games as noise. The mean over the games by seed does not.
    undeclared=(Contrast("age", "uniform"), Contrast("defaults times age", "uniform")),
    other_scores={"last three evaluations": mean_of_last_fifth},
    growth=0,
    chooses_by_task=False,
    is_relative=True,
    seconds=dict.fromkeys(GAMES, 175.0),
)
_PENDULUM = replace(
    GAMES_CAMPAIGN,
    name="ages-pendulum",
    endpoint="Mean return over all evaluations.",
    tasks=("Pendulum",),
    arms={arm: options[-1:] for arm, options in ARMS.items()},
    rates=(1.0,),
    choosing=range(0),
    settings=settings_of(("Pendulum",)),
    primary=tuple(contrast._replace(over="mean") for contrast in GAMES_CAMPAIGN.primary),
    secondary=tuple(contrast._replace(over="mean") for contrast in GAMES_CAMPAIGN.secondary),
    by_task=(),
    undeclared=(),
    other_scores={},
    is_relative=False,
    seconds={"Pendulum": 60.0},
    digits=(1, 1),
)
CAMPAIGNS = (
    GAMES_CAMPAIGN,
    _PENDULUM,
    replace(
        _PENDULUM,
        name="ages-pairs",
        tasks=("pairs",),
        settings=settings_of(("pairs",)),
        seconds={"pairs": 55.0},
        digits=(2, 2),
    ),
)
