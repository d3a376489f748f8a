"""Read, set and seed the random generators of a process."""

import random
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

#: States of the generators of Python, NumPy, PyTorch and, if asked for, of spaces.
RandomState = list[Any]


def current(*of_spaces: spaces.Space) -> RandomState:
    """Read the states of this process's generators, and of the own generators of some spaces."""
    states: RandomState = [random.getstate(), np.random.get_state(), th.get_rng_state().numpy()]
    return states + [space.np_random.bit_generator.state for space in of_spaces]


def set_current(states: RandomState, *of_spaces: spaces.Space) -> None:
    """Set what :func:`current` has read, with as many spaces."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    th.set_rng_state(th.from_numpy(np.array(states[2])))
    for space, state in zip(of_spaces, states[3:], strict=True):
        space.np_random.bit_generator.state = state


def seed_all(seed: int, space: spaces.Space) -> None:
    """Seed this process's generators and a space, with a seed below 2^31. GPUs, which actors do not use, stay as they are."""
    random.seed(seed)
    np.random.seed(seed)
    th.default_generator.manual_seed(seed)
    space.seed(seed)


def next_seed() -> int:
    """Return the number below 2^31 that NumPy's global generator would draw. Its state stays the same."""
    generator = np.random.RandomState()
    generator.set_state(np.random.get_state())
    return int(generator.randint(2**31))


def derived_seed(*numbers: int) -> int:
    """Derive a seed below 2^31 from integers of at least 0, e.g. a seed and the number of an actor."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)
