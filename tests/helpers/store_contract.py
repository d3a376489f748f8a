"""
What every store of observations must do, see :class:`sb3_per.storage.store.ObservationStore`.

Call :func:`check_store` with a function that makes an empty store for ``(n_rows, n_envs, shape, dtype)``. For a store that
rounds, say what it gives back.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from sb3_per.storage.store import ObservationStore

MakeStore = Callable[[int, int, tuple[int, ...], Any], ObservationStore]
AsStored = Callable[[np.ndarray], np.ndarray]


class Reference:
    """Keeps each observation of each slot."""

    def __init__(
        self, store: ObservationStore, n_rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any, as_stored: AsStored
    ):
        self.store, self.n_rows, self.n_envs, self.shape, self.dtype = store, n_rows, n_envs, shape, np.dtype(dtype)
        self.as_stored = as_stored
        self.rng = np.random.default_rng(n_rows)
        self.held: dict[int, tuple[bytes, bytes]] = {}
        self.added = np.zeros(n_envs, np.int64)
        self.last = self.random(n_envs)

    def random(self, *lead: int) -> np.ndarray:
        """Random bytes, NaN and negative zeros too; some are all zero."""
        n_bytes = int(np.prod((*lead, *self.shape))) * self.dtype.itemsize
        array = np.frombuffer(self.rng.bytes(n_bytes), self.dtype).reshape(*lead, *self.shape).copy()
        if self.dtype == np.bool_:
            array = (array.view(np.uint8) % 2).view(np.bool_)
        array[self.rng.random(lead) < 0.1] = 0
        return array

    def write(self, envs: np.ndarray | None, n_steps: int) -> None:
        """Write steps that follow one another, and now and then some that do not."""
        columns = np.arange(self.n_envs) if envs is None else envs
        rows = (self.added[columns] + np.arange(n_steps)[:, None]) % self.n_rows
        obs, next_obs = self.random(n_steps, len(columns)), self.random(n_steps, len(columns))
        for t in range(n_steps):
            if self.rng.random() < 0.8:
                obs[t] = self.last[columns]
            shift = max(1, self.shape[0] // 2) if self.shape else 1
            if self.shape and self.rng.random() < 0.7:
                next_obs[t, :, :-shift] = obs[t, :, shift:]
            self.last[columns] = next_obs[t]
        given = (obs.copy(), next_obs.copy())
        self.store.reserve(rows.size, int(rows.max(initial=-1)))
        with np.errstate(over="ignore", invalid="ignore"):  # a store may round random numbers to a smaller type
            if envs is None:
                self.store.write_row(int(rows[0, 0]), given[0][0], given[1][0])
            else:
                self.store.write(rows, envs, *given)
        for array in given:
            array[...] = 1  # it belongs to the caller
        for slot, one, other in zip(
            (rows * self.n_envs + columns).ravel().tolist(),
            obs.reshape(-1, *self.shape),
            next_obs.reshape(-1, *self.shape),
            strict=True,
        ):
            self.held[slot] = self.as_stored(one).tobytes(), self.as_stored(other).tobytes()
        self.added[columns] += n_steps

    def check(self) -> None:
        """Read everything back, to the byte, or to what the store is said to give back."""
        slots = np.array(sorted(self.held), np.int64)
        assert self.store.nbytes >= 0
        for is_next in (False, True):
            found = self.store.read(slots, is_next)
            assert found.shape == (len(slots), *self.shape) and found.dtype == self.dtype
            expected = [self.held[slot][is_next] for slot in slots.tolist()]
            assert [one.tobytes() for one in found] == expected, "an observation is not what was written"
            found[...] = 0  # it belongs to the batch
            pairs = slots[: len(slots) // 2 * 2].reshape(-1, 2)
            found = self.store.read(pairs, is_next)
            assert found.shape == (*pairs.shape, *self.shape)
            repeated = self.store.read(np.repeat(slots[:1], 3), is_next)
            assert {one.tobytes() for one in repeated} == {self.held[int(slots[0])][is_next]}


def check_store(make: MakeStore, as_stored: AsStored = np.asarray) -> None:
    """
    Check a store in several shapes and types, over several laps, in both forms of a write.

    :param make: makes an empty store
    :param as_stored: what the store gives back of an observation, in its type; by default every byte of it
    """
    forms: tuple[tuple[tuple[int, ...], Any], ...] = (((4, 3, 3), np.uint8), ((2,), np.float64), ((6, 2), np.float32))
    for shape, dtype in (*forms, ((4,), np.bool_)):
        for n_rows, n_envs in ((1, 1), (7, 3)):
            store = make(n_rows, n_envs, shape, dtype)
            assert store.read(np.empty(0, np.int64), False).shape == (0, *shape)
            assert not store.read(np.arange(n_rows * n_envs), True).any()
            reference = Reference(store, n_rows, n_envs, shape, dtype, as_stored)
            for _ in range(4 * n_rows):
                reference.write(None, 1)
                reference.check()
            for _ in range(12):  # environments stand at different steps from here on
                envs = reference.rng.permutation(n_envs)[: reference.rng.integers(1, n_envs + 1)]
                reference.write(envs, int(reference.rng.integers(0, n_rows + 1)))
                reference.check()
            store.clear()
            reference.held.clear()
            reference.added[:] = 0
            for _ in range(2):
                reference.write(None, 1)
                reference.check()
