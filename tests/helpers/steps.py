"""Every kind of buffer, and single steps for it."""

import copy
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from sb3_per import (
    PrioritizedDictReplayBuffer,
    PrioritizedDictSequenceReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from tests.helpers.buffers import (
    ACTION_SPACES,
    OBSERVATION_SPACES,
    batch_of,
    counting_env,
)

N_ENVS, N_ROWS = 2, 6


BOX, STACK, DISCRETE = OBSERVATION_SPACES["box"], spaces.Box(0, 255, (4, 2, 2), np.uint8), OBSERVATION_SPACES["discrete"]

DICT = spaces.Dict({"image": STACK, "num": DISCRETE})

SEQUENCES: dict[str, Any] = dict(sequence_length=2, burn_in=1, state_shapes=((1, 3),))

OPTIMIZE_MEMORY = dict(optimize_memory_usage=True, handle_timeout_termination=False)


goal_env = functools.cache(lambda: counting_env(n_envs=N_ENVS, goals=True))


def her(n_rows: int = N_ROWS, **kwargs: Any) -> PrioritizedHerReplayBuffer:
    env = goal_env()
    return PrioritizedHerReplayBuffer(n_rows * N_ENVS, env.observation_space, env.action_space, env, "cpu", N_ENVS, **kwargs)


def make(cls: Any, space: spaces.Space, action_space: str = "box", **kwargs: Any) -> Callable[[], Any]:
    return lambda: cls(N_ROWS * N_ENVS, space, ACTION_SPACES[action_space], "cpu", N_ENVS, **kwargs)


KINDS: dict[str, Callable[[], Any]] = {
    "plain": make(PrioritizedReplayBuffer, BOX),
    "td errors": make(PrioritizedReplayBuffer, BOX, initial_priority="td_error"),
    "discrete": make(PrioritizedReplayBuffer, DISCRETE, "discrete", n_steps=3),
    "optimize_memory": make(PrioritizedReplayBuffer, BOX, **OPTIMIZE_MEMORY),
    "frames": make(PrioritizedReplayBuffer, STACK, frames=4),
    "dict": make(PrioritizedDictReplayBuffer, DICT),
    "dict, frames": make(PrioritizedDictReplayBuffer, DICT, frames=dict(image=4)),
    "her": her,
    "her, frames": lambda: her(frames=dict(observation=2)),
    "her, infos": lambda: her(copy_info_dict=True),
    "her, infos without timeouts": lambda: her(copy_info_dict=True, handle_timeout_termination=False),
    "sequences": make(PrioritizedSequenceReplayBuffer, BOX, **SEQUENCES),
    "sequences, dict": make(PrioritizedDictSequenceReplayBuffer, DICT, **SEQUENCES),
}


def step_of(buffer: Any, i: int = 0) -> dict[str, Any]:
    """Make one step of every environment, as keyword arguments of `add`."""
    rng = np.random.default_rng(i)
    space, action_space = copy.deepcopy((buffer.observation_space, buffer.action_space))  # seeds must not reach the buffer
    space.seed(i), action_space.seed(i)
    return dict(
        obs=batch_of(space, N_ENVS),
        next_obs=batch_of(space, N_ENVS),
        action=batch_of(action_space, N_ENVS),
        reward=rng.normal(size=N_ENVS),
        done=np.full(N_ENVS, i % 3 == 2),
        infos=[{"TimeLimit.truncated": False, "i": i} for _ in range(N_ENVS)],
    )


def filled(kind: str, n_steps: int = 9) -> Any:
    """Make a buffer with this many steps; from 7 on, some rows are of the second lap."""
    buffer = KINDS[kind]()
    for i in range(n_steps):
        buffer.add(**step_of(buffer, i))
    if n_steps >= N_ROWS:
        np.random.seed(0)
        ids = buffer.sample(4).indices
        errors = np.ones((2, 4)) if "sequences" in kind else np.arange(4.0)
        buffer.update_priorities(ids, errors)
    return buffer


def files_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.mapped"))


def make_of_kind(kind: str, monkeypatch: Any, folder: Path) -> Any:
    """Make an empty buffer of a kind with its constructor, in a folder."""
    plain = KINDS[kind]()
    if kind.startswith("her"):
        arguments: tuple[Any, ...] = (plain.env, "cpu", N_ENVS)
        own: dict[str, Any] = dict(copy_info_dict=plain.copy_info_dict)
    else:
        arguments, own = ("cpu", N_ENVS), {name: getattr(plain, name) for name in plain.extra_arguments}
    own.update(handle_timeout_termination=plain.handle_timeout_termination, optimize_memory_usage=plain.optimize_memory_usage)
    own.update({name: getattr(plain.settings, name) for name in ("n_steps", "frames", "initial_priority")})
    size = plain.buffer_size * N_ENVS
    return type(plain)(size, plain.observation_space, plain.action_space, *arguments, **own, storage_folder=folder)
