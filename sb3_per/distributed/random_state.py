"""Give each actor a random state of its own, so that acting does not change the generators of the process."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces

#: States of the generators of Python, NumPy, PyTorch and the action space.
RandomState = tuple[Any, Any, np.ndarray, Any]


def current(space: spaces.Space) -> RandomState:
    """
    Read the state of this process's generators.

    :param space: action space, whose generator is read as well
    :return: the state
    """
    return random.getstate(), np.random.get_state(), th.get_rng_state().numpy(), space.np_random.bit_generator.state


def set_current(state: RandomState, space: spaces.Space) -> None:
    """
    Set the state of this process's generators.

    :param state: the new state
    :param space: action space, whose generator is set as well
    """
    random.setstate(state[0])
    np.random.set_state(state[1])
    th.set_rng_state(th.from_numpy(np.array(state[2])))
    space.np_random.bit_generator.state = state[3]


class RandomNumbers:
    """
    Draw the random numbers of an actor.

    :param state: state to draw from, which draws change
    :param space: action space of the actor
    """

    def __init__(self, state: RandomState, space: spaces.Space):
        self.state, self.space = state, space

    @classmethod
    def seeded(cls, seed: int, space: spaces.Space) -> "RandomNumbers":
        """
        Start from the state that ``set_random_seed`` would set, without setting it.

        :param seed: seed of all generators
        :param space: action space, which has a generator of its own; it is seeded
        :return: the random numbers
        """
        space.seed(seed)
        python, numpy = random.Random(seed).getstate(), np.random.RandomState(seed % 2**32).get_state()
        torch = th.Generator().manual_seed(seed).get_state().numpy()
        return cls((python, numpy, torch, space.np_random.bit_generator.state), space)

    @contextlib.contextmanager
    def drawing(self) -> Iterator[None]:
        """
        Draw from these random numbers, with one thread. Then restore the generators of the process.

        :return: context
        """
        before, n_threads = current(self.space), th.get_num_threads()
        set_current(self.state, self.space)
        # With one thread, sums do not depend on the number of cores, so another machine computes the same numbers.
        th.set_num_threads(1)
        try:
            yield
        finally:
            self.state = current(self.space)
            th.set_num_threads(n_threads)
            set_current(before, self.space)


def derived_seed(*numbers: int) -> int:
    """
    Derive a seed from several numbers. Other numbers give another seed.

    :param numbers: integers of at least 0, e.g. a seed, the number of an actor, and how often it was started
    :return: a seed below 2^31
    """
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)
