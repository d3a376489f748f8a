"""Random numbers of an actor: streams of its own, which the process they are drawn in does not notice."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

State = tuple[Any, Any, np.ndarray, Any]


def seeded(seed: int, space: spaces.Space) -> State:
    """
    :param seed: of all the streams
    :param space: of actions, which has a generator of its own; it is seeded
    :return: what ``set_random_seed`` would make of them, without doing so
    """
    space.seed(seed)
    return (
        random.Random(seed).getstate(),
        np.random.RandomState(seed % 2**32).get_state(),
        th.Generator().manual_seed(seed).get_state().numpy(),
        space.np_random.bit_generator.state,
    )


def current(space: spaces.Space) -> State:
    """
    :param space: of actions
    :return: state of this process's generators, and of the space's
    """
    return random.getstate(), np.random.get_state(), th.get_rng_state().numpy(), space.np_random.bit_generator.state


def take_on(state: State, space: spaces.Space) -> None:
    """
    :param state: for this process's generators, and the space's
    :param space: of actions
    """
    random.setstate(state[0])
    np.random.set_state(state[1])
    th.set_rng_state(th.from_numpy(np.array(state[2])))
    space.np_random.bit_generator.state = state[3]


@contextlib.contextmanager
def drawing_from(state: State, space: spaces.Space) -> Iterator[list[State]]:
    """
    :param state: that random numbers come from
    :param space: of actions, an actor's own
    :return: context; behind it, the process's generators are as they were, and the list holds the new state
    """
    before = random.getstate(), np.random.get_state(), th.get_rng_state()
    n_threads = th.get_num_threads()
    after: list[State] = []
    take_on(state, space)
    # Sums do not depend on the number of cores then: the same numbers here and on another machine.
    th.set_num_threads(1)
    try:
        yield after
        after.append(current(space))
    finally:
        th.set_num_threads(n_threads)
        random.setstate(before[0])
        np.random.set_state(before[1])
        th.set_rng_state(before[2])


def derived_seed(*numbers: int) -> int:
    """
    :param numbers: at least 0, e.g. a seed, the number of an actor, and how often it was started
    :return: a seed below 2^31; other numbers give another one
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)
