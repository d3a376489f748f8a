"""All algorithms, and small trained models for tests of saving and loading."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch as th
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
    PERRecurrentDQN,
    PERRecurrentSAC,
)


def values_of_critics(model: Any, batch: Any) -> th.Tensor:
    """Compute the values of the batch's actions, one column for each critic."""
    return th.cat(model.critic(batch.observations, batch.actions), dim=1)


class Algorithm(NamedTuple):
    """
    What tests know of an algorithm.

    :param stock: stock class that it replaces
    :param configuration: name of one of ``CONFIGURATIONS`` in ``tests/helpers/algorithms.py``, without batch normalization
    :param env: id of an environment that fits it
    :param is_bit_equal: whether its updates with equal weights equal those of the stock class to the bit, for batches of 32.
        Those of the others add in another order, and differ in the last digits
    :param value_network: name of the network whose values are estimated
    :param values_of: function of a model and a batch that computes the values of its actions, one column for each critic
    :param added_arguments: arguments that it adds to those of the stock class, with their defaults
    """

    stock: Any
    configuration: str
    env: str = "Pendulum-v1"
    is_bit_equal: bool = False
    value_network: str = "critic"
    values_of: Callable[[Any, Any], th.Tensor] = values_of_critics
    added_arguments: dict[str, Any] = {}


ALGORITHMS: dict[Any, Algorithm] = {
    PERSAC: Algorithm(SAC, "sac", is_bit_equal=True),
    PERTD3: Algorithm(TD3, "td3", is_bit_equal=True),
    PERDDPG: Algorithm(DDPG, "ddpg", is_bit_equal=True),
    PERDQN: Algorithm(
        DQN,
        "dqn",
        "CartPole-v1",
        is_bit_equal=True,
        value_network="q_net",
        values_of=lambda model, batch: model.q_net(batch.observations).gather(1, batch.actions.long()),
        added_arguments=dict(double_q=False),
    ),
    PERQRDQN: Algorithm(
        QRDQN,
        "qrdqn",
        "CartPole-v1",
        value_network="quantile_net",
        values_of=lambda model, batch: model.quantile_net(batch.observations).mean(dim=1).gather(1, batch.actions.long()),
    ),
    PERTQC: Algorithm(TQC, "tqc", values_of=lambda model, batch: model.critic(batch.observations, batch.actions).mean(dim=2)),
    PERCrossQ: Algorithm(CrossQ, "crossq-plain"),
}

# Every algorithm and the stock class that it replaces.
STOCK = {cls: algorithm.stock for cls, algorithm in ALGORITHMS.items()}

# Recurrent algorithms, which learn from windows of steps. No stock class has their updates.
RECURRENT: tuple[Any, ...] = (PERRecurrentDQN, PERRecurrentSAC)

EVERY = (*ALGORITHMS, *RECURRENT)


def env_of(cls: Any) -> str:
    """Return the id of an environment that fits a class of algorithms, a stock class or a subclass."""
    return next(algorithm.env for algorithm in ALGORITHMS.values() if issubclass(cls, algorithm.stock))


def trained(cls: Any, timesteps: int = 60, **kwargs: Any) -> Any:
    small = dict(buffer_size=40, learning_starts=20, batch_size=8, policy_kwargs=dict(net_arch=[8]), seed=0)
    policy = "MlpPolicy"
    if issubclass(cls, RECURRENT):
        policy = "MlpLstmPolicy"
        small |= dict(sequence_length=4, burn_in=2, train_freq=4, policy_kwargs=dict(net_arch=[8], lstm_hidden_size=8))
    return cls(policy, env_of(cls), **{**small, **kwargs}).learn(timesteps)
