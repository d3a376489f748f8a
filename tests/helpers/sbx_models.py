"""Small models of SBX. Compiling takes far longer than training them, so tests share them."""

import functools
from typing import Any

import jax
import numpy as np
import optax
import pytest
import sbx
from stable_baselines3.common.logger import Logger

import sb3_per.sbx as ours
from tests.helpers.buffers import fill

#: Our class, the stock class, and arguments that keep them small.
ALGORITHMS = {
    "sac": (ours.PERSAC, sbx.SAC, {}),
    "td3": (ours.PERTD3, sbx.TD3, dict(policy_delay=2)),
    "ddpg": (ours.PERDDPG, sbx.DDPG, {}),
    "tqc": (ours.PERTQC, sbx.TQC, dict(policy_kwargs=dict(n_quantiles=5))),
    "crossq": (ours.PERCrossQ, sbx.CrossQ, dict(policy_delay=2)),
    "dqn": (ours.PERDQN, sbx.DQN, {}),
}
BATCH_SIZE = 8


def names(*quick: str) -> list[Any]:
    """List all algorithms as parameters of a test; those that are not named are slow."""
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in ALGORITHMS]


def make(name: str, stock: bool = False, **kwargs: Any) -> Any:
    """Make a new model. With the same arguments, ours and the stock class start with the same parameters and key."""
    mine, theirs, arguments = ALGORITHMS[name]
    policy_kwargs = {"net_arch": [4, 4], **arguments.get("policy_kwargs", {}), **kwargs.pop("policy_kwargs", {})}
    arguments = dict(buffer_size=80, batch_size=BATCH_SIZE, seed=0, learning_starts=20) | arguments | kwargs
    env = arguments.pop("env", "Pendulum-v1" if mine.has_actor else "CartPole-v1")
    policy = arguments.pop("policy", "MlpPolicy")
    return (theirs if stock else mine)(policy, env, **{**arguments, "policy_kwargs": policy_kwargs})


#: With SGD, an update is the gradient.
SGD: dict[str, Any] = dict(policy_kwargs=dict(optimizer_class=optax.sgd), learning_rate=0.1)


@functools.cache
def _shared(name: str) -> tuple[Any, Any]:
    model = make(name, **SGD)
    return model, (model._networks(), model.key)


def shared(name: str) -> Any:
    """Return a model that was made once, as it was then, with 60 new transitions. It has the rate 0.1 and SGD."""
    model, (networks, model.key) = _shared(name)
    model._set_networks(networks)
    model._n_updates, model.num_timesteps = 0, 0
    buffer = model.replay_buffer
    buffer.reset()
    fill([buffer], 60)
    buffer.beta_schedule.value = buffer.settings.beta_start
    model.set_logger(Logger(None, []))
    return model


def leaves(model: Any) -> list[np.ndarray]:
    """Return all parameters, targets, statistics and states of optimizers."""
    if hasattr(model, "_networks"):
        return [np.asarray(leaf) for leaf in jax.tree.leaves(model._networks())]
    networks = [getattr(model.policy, f"{each}_state", None) for each in ("qf", "qf1", "qf2", "actor")]
    networks.append(getattr(model, "ent_coef_state", None))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(networks)]


def logged(model: Any) -> dict[str, Any]:
    """Return what the newest call of ``train`` logged."""
    return dict(model.logger.name_to_value)


def forward(params: Any, *inputs: np.ndarray) -> np.ndarray:
    """Compute an MLP with ReLU in NumPy."""
    x, layers = np.concatenate(inputs, axis=1), params["params"]
    for i in range(len(layers)):
        x = x @ np.asarray(layers[f"Dense_{i}"]["kernel"]) + np.asarray(layers[f"Dense_{i}"]["bias"])
        x = np.maximum(x, 0) if i < len(layers) - 1 else x
    return x
