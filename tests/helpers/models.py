"""Small trained models for tests of saving and loading."""

from typing import Any

from sb3_contrib import QRDQN, TQC, CrossQ
from stable_baselines3 import DDPG, DQN, SAC, TD3

from sb3_per import (
    PERDDPG,
    PERDQN,
    PERQRDQN,
    PERSAC,
    PERTD3,
    PERTQC,
    PERCrossQ,
)


def env_of(cls: Any) -> str:
    """Return the id of an environment that fits a class of algorithms."""
    return "CartPole-v1" if issubclass(cls, (DQN, QRDQN)) else "Pendulum-v1"


def trained(cls: Any, timesteps: int = 60, **kwargs: Any) -> Any:
    kwargs = dict(buffer_size=40, learning_starts=20, batch_size=8, policy_kwargs=dict(net_arch=[8]), seed=0) | kwargs
    return cls("MlpPolicy", env_of(cls), **kwargs).learn(timesteps)


# Every algorithm and the stock class that it replaces.
STOCK = {PERSAC: SAC, PERTD3: TD3, PERDDPG: DDPG, PERDQN: DQN, PERQRDQN: QRDQN, PERTQC: TQC, PERCrossQ: CrossQ}

# Algorithms whose updates with equal weights equal those of the stock class to the bit, for batches of 32. Those of the others
# add in another order, and differ in the last digits.
BIT_EQUAL = (PERSAC, PERTD3, PERDDPG, PERDQN)

# Arguments that an algorithm adds to those of the stock class, with their defaults.
ADDED_ARGUMENTS = {PERDQN: dict(double_q=False)}
