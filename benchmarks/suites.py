"""
What the suites of `learning.py` compare: tasks, arms, settings, seeds and endpoints. `report.py` writes their pages.

Importing this module registers no environment, see :func:`learning.register_environments`.
"""

from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Variant:
    """One arm of a suite."""

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
    endpoint: str = ""  # comparison, written down before the runs
    # variant that the others are compared with, or arm of it at several rates; None: the first variant
    twin: str | None = None


def named_at(variant: str, rate: float) -> str:
    """Name a variant at a factor of the learning rate."""
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


def on_new_seeds(suite: Suite, *arms: str) -> Suite:
    """Make the suite that confirms a choice, on as many new seeds. Only the arms in question run again, and the first one."""
    known = list(dict.fromkeys(map(arm_of, suite.variants)))
    if not set(arms) <= set(known):
        raise ValueError(f"arms must be of the suite, and {sorted(set(arms) - set(known))} are not")
    kept = {name: variant for name, variant in suite.variants.items() if arm_of(name) in (known[0], *arms)}
    endpoint = "On seeds that nothing was chosen on, does what won in bits-rates hold? " + suite.endpoint
    return replace(suite, variants=kept, first_seed=1_000, endpoint=endpoint)


def prioritized(algorithm: str, arms: dict[str, dict[str, Any]]) -> dict[str, Variant]:
    """Make variants of a class of this package that differ in ``replay_buffer_kwargs``."""
    return {name: Variant(algorithm, dict(replay_buffer_kwargs=settings)) for name, settings in arms.items()}


# A third of the task's learning rate, the task's, and three times. Prioritization changes which rate is best, so that a
# comparison at one rate mostly measures that.
THREE_RATES = (1 / 3, 1.0, 3.0)
_AT_RATES = (
    "Each arm at its own best of the three learning rates, chosen on the even seeds and measured on the odd ones; and its "
    "mean over the three rates. A gain counts if it vanishes when the priorities are shuffled within the batch."
)

UNIFORM = dict(scheme="uniform")
SHUFFLED = dict(scheme="shuffled proportional")
# Huber threshold and exponent of LAP for Atari; LAP's defaults are for continuous control.
DISCRETE_LAP = dict(scheme="lap", alpha=0.6, kappa=0.01)
NO_WEIGHTS = dict(beta_start=0.0, beta_end=0.0)
# The candidate for the defaults, from a first look at one learning rate.
CANDIDATE: dict[str, Any] = dict(epsilon=0.01, weight_normalization="mean", uniform_fraction=0.25)
_SPACE_INVADERS = ("MinAtar/SpaceInvaders-v1",)

SUITES = {
    # Networks and replay as of Young & Tian (2019), one gradient step for four steps of the environment as on Atari.
    "discrete": Suite(
        environments=("MinAtar/Breakout-v1", "MinAtar/Asterix-v1", *_SPACE_INVADERS),
        variants={
            "DQN": Variant("DQN"),
            "PERDQN": Variant("PERDQN"),
            "PERDQN, Double Q, 3 steps": Variant("PERDQN", dict(double_q=True, n_steps=3), twin="uniform, Double Q, 3 steps"),
            **prioritized("PERDQN", {"PERDQN, LAP": DISCRETE_LAP}),
            # Why PERDQN is below DQN in this one: the paper's learning rate, and its Double Q without the three steps.
            "PERDQN, learning rate / 4": Variant("PERDQN", dict(learning_rate=6.25e-5), _SPACE_INVADERS),
            "PERDQN, Double Q": Variant("PERDQN", dict(double_q=True), _SPACE_INVADERS),
            # How much Double Q and 3 steps gain without prioritization.
            "uniform, Double Q, 3 steps": Variant("PERDQN", dict(double_q=True, n_steps=3, replay_buffer_kwargs=UNIFORM)),
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
            **prioritized(
                "PERDQN",
                {
                    "PERDQN, uniform": UNIFORM,
                    "PERDQN, LAP": DISCRETE_LAP,
                    "PERDQN, candidate": CANDIDATE,
                    "shuffled, PERDQN": SHUFFLED,
                },
            ),
        },
        twin="PERDQN, uniform",
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
            # Why PERSAC is below SAC: with beta = 1 the weights remove all of the bias towards large errors.
            **prioritized("PERSAC", {"PERSAC, LAP": dict(scheme="lap"), "PERSAC, beta 1": dict(beta_start=1.0)}),
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
            **prioritized("PERTD3", {"PERTD3, LAP": dict(scheme="lap"), "PERTD3, PAL": dict(scheme="pal")}),
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

# Which settings gain. Goals that are reached by chance are the rare events here.
_BITS_ARMS = {
    "DQN": Variant("DQN"),
    **prioritized(
        "PERDQN",
        {
            "uniform": UNIFORM,
            "defaults": {},
            "LAP": dict(scheme="lap"),
            # This twin draws as the stock class does. Its difference from the stratified twin is not a gain of prioritization.
            "uniform, not stratified": dict(scheme="uniform", stratified=False),
            **{
                f"epsilon {epsilon:g}, {normalization}": dict(epsilon=epsilon, weight_normalization=normalization)
                for epsilon in (1e-6, 0.01, 0.1)
                for normalization in ("max", "mean")
                if (epsilon, normalization) != (1e-6, "max")  # the defaults
            },
            **{f"epsilon {epsilon:g}, no weights": dict(epsilon=epsilon, **NO_WEIGHTS) for epsilon in (1e-6, 0.01, 0.1)},
            "epsilon 0.01, mean, eta 0.1": {**CANDIDATE, "uniform_fraction": 0.1},
            "epsilon 0.01, mean, eta 0.25": CANDIDATE,
            # The controls.
            "shuffled, LAP": dict(scheme="shuffled lap"),
            "shuffled, no weights": {**SHUFFLED, **NO_WEIGHTS},
            "shuffled, epsilon 0.01, mean, eta 0.25": {**SHUFFLED, **CANDIDATE},
        },
    ),
}
SUITES["bits-rates"] = Suite(
    endpoint="Success of the last 50 training episodes. " + _AT_RATES,
    environments=("BitFlipping-v0",),
    variants=at_rates(_BITS_ARMS, 2e-3, THREE_RATES),
    rates=THREE_RATES,
    twin="uniform",
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
# The next two are confirmations themselves: nothing was chosen on their seeds.
_CHAIN_ARMS = {
    "DQN": Variant("DQN"),
    **prioritized(
        "PERDQN",
        {
            "uniform": UNIFORM,
            "defaults": {},
            "LAP": dict(scheme="lap", kappa=0.01),
            "no weights": NO_WEIGHTS,
            "candidate": CANDIDATE,
            "shuffled, defaults": SHUFFLED,
        },
    ),
}
SUITES["chain-rates"] = Suite(
    endpoint="Steps until the way to the end is known. " + _AT_RATES,
    environments=("Chain-v0",),
    variants=at_rates(_CHAIN_ARMS, 1e-3, THREE_RATES),
    rates=THREE_RATES,
    twin="uniform",
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
_PAIRS_ARMS = {
    "SAC": Variant("SAC"),
    **prioritized(
        "PERSAC",
        {
            "uniform": UNIFORM,
            "defaults": {},
            "candidate": CANDIDATE,
            "LAP": dict(scheme="lap"),
            "defaults and uniform actor": dict(actor_batch="uniform"),
            "defaults and weighted actor": dict(actor_batch="weighted"),
        },
    ),
}
SUITES["pairs-rates"] = replace(
    SUITES["pairs"],
    endpoint="Mean return of the last evaluations. " + _AT_RATES,
    variants=at_rates(_PAIRS_ARMS, 1e-3, THREE_RATES),
    rates=THREE_RATES,
    twin="uniform",
)
# The control of the defaults ran after all others, on the new seeds alone.
_BITS_CONTROL = at_rates(prioritized("PERDQN", {"shuffled, defaults": SHUFFLED}), 2e-3, THREE_RATES)
SUITES["bits-confirmation"] = on_new_seeds(
    replace(SUITES["bits-rates"], variants={**SUITES["bits-rates"].variants, **_BITS_CONTROL}),
    *("uniform", "uniform, not stratified", "defaults", "LAP"),
    *("epsilon 1e-06, no weights", "epsilon 0.01, mean, eta 0.25"),
    *("shuffled, LAP", "shuffled, no weights", "shuffled, epsilon 0.01, mean, eta 0.25", "shuffled, defaults"),
)


# ---- recurrent agents; the arms are whole agents, each with its own settings

_LSTM_64 = dict(lstm_hidden_size=64)
_UNIFORM = dict(replay_buffer_kwargs=UNIFORM)


def _recurrent_ppo(n_envs: int, **settings: Any) -> Variant:
    """Make RecurrentPPO with the settings of RL Zoo for these environments."""
    networks = dict(
        ortho_init=False, activation_fn="ReLU", enable_critic_lstm=True, net_arch=dict(pi=[64], vf=[64]), **_LSTM_64
    )
    shared = dict(gae_lambda=0.95, ent_coef=0.0, policy_kwargs=networks)
    return Variant("RecurrentPPO", {**shared, **settings}, policy="MlpLstmPolicy", n_envs=n_envs, normalize=True)


def _agents(
    algorithm: str, recurrent: dict[str, Any], memoryless: dict[str, Any], n_envs: int | None = None
) -> dict[str, Variant]:
    """
    List the recurrent twin of an algorithm, prioritized and uniform, the algorithm itself, and the same with stacked frames.
    """
    name = f"PERRecurrent{algorithm}"
    uniform = Variant(name, {**recurrent, **_UNIFORM}, policy="MlpLstmPolicy", n_envs=n_envs)
    return {
        name: replace(uniform, settings=recurrent, twin=f"{name}, uniform"),
        f"{name}, uniform": uniform,
        f"PER{algorithm}": Variant(f"PER{algorithm}", memoryless),
        f"PER{algorithm}, 4 frames": Variant(f"PER{algorithm}", memoryless, n_frames=4),
    }


MEMORY_SUITES = {
    "memory-cartpole": Suite(
        endpoint="Mean return of the last two of ten evaluations; 475 is solved.",
        environments=("CartPoleNoVel-v1",),
        variants={
            "RecurrentPPO": _recurrent_ppo(
                8,
                n_steps=32,
                batch_size=256,
                gae_lambda=0.8,
                gamma=0.98,
                n_epochs=20,
                learning_rate="lin_0.001",
                clip_range="lin_0.2",
            ),
            **_agents(
                "DQN",
                dict(
                    learning_rate="lin_0.0005",
                    buffer_size=100_000,
                    learning_starts=1_000,
                    train_freq=1,
                    gradient_steps=2,
                    target_update_interval=500,
                    exploration_fraction=0.064,
                    exploration_final_eps=0.04,
                    sequence_length=20,
                    burn_in=10,
                    n_steps=3,
                    policy_kwargs=_LSTM_64,
                ),
                # Settings of RL Zoo for the environment with velocities.
                dict(
                    learning_rate=2.3e-3,
                    batch_size=64,
                    buffer_size=100_000,
                    learning_starts=1_000,
                    target_update_interval=10,
                    train_freq=256,
                    gradient_steps=128,
                    exploration_fraction=0.16,
                    exploration_final_eps=0.04,
                    policy_kwargs=dict(net_arch=[256, 256]),
                ),
                n_envs=4,
            ),
        },
        seeds=5,
        steps=100_000,
        n_evaluations=10,
        n_episodes=20,
        settings={},
    ),
    "memory-pendulum": Suite(
        endpoint="Mean return of the last two of ten evaluations of 50 episodes.",
        environments=("PendulumNoVel-v1",),
        variants={
            "RecurrentPPO": _recurrent_ppo(
                4, n_steps=1024, gamma=0.9, n_epochs=10, learning_rate=1e-3, use_sde=True, sde_sample_freq=4
            ),
            **_agents(
                "SAC",
                dict(
                    learning_rate=1e-3,
                    gamma=0.95,
                    batch_size=64,
                    learning_starts=1_000,
                    train_freq=2,
                    sequence_length=10,
                    burn_in=10,
                    policy_kwargs=dict(net_arch=[64, 64], **_LSTM_64),
                ),
                dict(learning_rate=1e-3, gamma=0.95, learning_starts=1_000, policy_kwargs=dict(net_arch=[64, 64])),
            ),
        },
        seeds=5,
        steps=30_000,
        n_evaluations=10,
        n_episodes=50,
        settings={},
    ),
    "memory-doors": Suite(
        endpoint=(
            "Mean return of the last two of ten evaluations, the share of the doors that are opened: 1 with the memory of 50 "
            "steps, 0.25 without. Windows have 16 steps; does the stored state bridge them, and does burn-in without it?"
        ),
        environments=("Doors-v0",),
        variants={
            name: Variant("PERRecurrentDQN", settings, policy="MlpLstmPolicy")
            for name, settings in {
                "zero state": dict(replay_buffer_kwargs=dict(store_state=False)),
                "zero state, burn-in": dict(burn_in=16, replay_buffer_kwargs=dict(store_state=False)),
                "stored state": {},
                "stored state, burn-in": dict(burn_in=16),
                "stored state, uniform": _UNIFORM,
            }.items()
        },
        seeds=5,
        steps=60_000,
        n_envs=4,
        n_evaluations=10,
        n_episodes=100,
        settings=dict(
            learning_rate=2e-3,
            gamma=0.9,
            buffer_size=100_000,
            learning_starts=1_000,
            train_freq=2,
            target_update_interval=500,
            exploration_fraction=0.2,
            exploration_final_eps=0.1,
            sequence_length=16,
            burn_in=0,
            n_steps=1,
            policy_kwargs=dict(lstm_hidden_size=32),
        ),
    ),
}
SUITES.update(MEMORY_SUITES)
