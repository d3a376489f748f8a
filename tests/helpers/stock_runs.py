"""Runs of stock classes and of ours that must be equal to the bit: with uniform draws, ours learn as the stock classes do."""

import copy
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch as th
from stable_baselines3.common.save_util import recursive_getattr

import sb3_per
from tests.helpers.models import STOCK, env_of

#: Settings of a buffer that draws as SB3's does.
UNIFORM: dict[str, Any] = dict(scheme="uniform", stratified=False)

OURS = {stock: ours for ours, stock in STOCK.items()}


def small(**changes: Any) -> dict[str, Any]:
    """Arguments of a small model; SB3 writes into some of them, so each call gives new ones."""
    arguments = dict(
        seed=0, buffer_size=60, learning_starts=20, batch_size=8, train_freq=1, device="cpu", policy_kwargs=dict(net_arch=[8])
    )
    return copy.deepcopy({**arguments, **changes})


def made(cls: Any, **changes: Any) -> Any:
    """Make a small model, of a class whose kind of draws is that of the stock class."""
    arguments = small(**changes)
    if isinstance(cls, type) and issubclass(cls, sb3_per.algorithms.base.PrioritizedAlgorithm):
        arguments["replay_buffer_kwargs"] = {**UNIFORM, **arguments.get("replay_buffer_kwargs", {})}
    return cls(arguments.pop("policy", "MlpPolicy"), arguments.pop("env", env_of(cls)), **arguments)


def learned(model: Any) -> dict[str, Any]:
    """Collect what learning has changed: networks, states of optimizers, entropy coefficient, rows and random states."""
    found: dict[str, Any] = {}
    names, tensors = model._get_torch_save_params()
    for name in names:
        state = recursive_getattr(model, name).state_dict()
        found[name] = state.get("state", state)
    for name in tensors:
        found[name] = recursive_getattr(model, name, 0.0)  # CrossQ names one that a learned coefficient does not have
    buffer = model.replay_buffer
    for name in ("rewards", "actions", "pos"):
        found[name] = getattr(buffer, name)
    found["numpy"], found["torch"] = np.random.get_state()[1], th.get_rng_state()
    found["n_updates"] = model._n_updates
    return found


def differences(one: Any, other: Any, name: str = "") -> list[str]:
    """Name what is not equal to the bit."""
    if isinstance(one, dict):
        if one.keys() != other.keys():
            return [f"{name} has other keys"]
        return [found for key in one for found in differences(one[key], other[key], f"{name}.{key}")]
    values = [value.detach().numpy() if isinstance(value, th.Tensor) else np.asarray(value) for value in (one, other)]
    return [] if np.array_equal(*values, equal_nan=values[0].dtype.kind == "f") else [name]


def whole_life(cls: Any, folder: Path, **changes: Any) -> Any:
    """Make a model, train it, save it with its buffer, load both, and go on."""
    model = made(cls, **changes).learn(50)
    model.save(folder / "model")
    model.save_replay_buffer(folder / "buffer.pkl")
    env = changes.get("env", env_of(cls))
    loaded = cls.load(folder / "model", env=gym.make(env) if isinstance(env, str) else env)
    loaded.load_replay_buffer(folder / "buffer.pkl")
    return loaded.learn(30, reset_num_timesteps=False)
