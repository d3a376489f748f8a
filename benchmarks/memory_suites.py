"""Suites of `learning.py` on recurrent agents. The arms are whole agents, each with its own settings."""

from typing import Any

from suite import Suite, Variant

_LSTM_64 = dict(lstm_hidden_size=64)
_UNIFORM = dict(replay_buffer_kwargs=dict(scheme="uniform"))


def _recurrent_ppo(n_envs: int, **settings: Any) -> Variant:
    """Make RecurrentPPO with the settings of RL Zoo for these environments."""
    networks = dict(
        ortho_init=False, activation_fn="ReLU", enable_critic_lstm=True, net_arch=dict(pi=[64], vf=[64]), **_LSTM_64
    )
    shared = dict(gae_lambda=0.95, ent_coef=0.0, policy_kwargs=networks)
    return Variant("RecurrentPPO", {**shared, **settings}, policy="MlpLstmPolicy", n_envs=n_envs, normalize=True)


def _variants(
    algorithm: str, recurrent: dict[str, Any], memoryless: dict[str, Any], n_envs: int | None = None
) -> dict[str, Variant]:
    """
    List the arms of a suite.

    :param algorithm: algorithm that has a recurrent twin
    :param recurrent: settings of the recurrent twin
    :param memoryless: settings of the algorithm itself
    :param n_envs: number of environments that the recurrent twin trains in
    :return: the recurrent twin, prioritized and uniform; the algorithm itself, and the same with stacked frames
    """
    with_memory = Variant(f"PERRecurrent{algorithm}", recurrent, policy="MlpLstmPolicy", n_envs=n_envs)
    uniform = Variant(f"PERRecurrent{algorithm}", {**recurrent, **_UNIFORM}, policy="MlpLstmPolicy", n_envs=n_envs)
    return {
        f"PERRecurrent{algorithm}": with_memory,
        f"PERRecurrent{algorithm}, uniform": uniform,
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
            **_variants(
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
                4,
                n_steps=1024,
                gamma=0.9,
                n_epochs=10,
                learning_rate=1e-3,
                use_sde=True,
                sde_sample_freq=4,
            ),
            **_variants(
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
