"""
Which transitions of a buffer can be drawn, by brute force: a record of all steps, and the definitions.

The record knows nothing of the buffer's parts. Tell it of every operation, and compare with :func:`assert_as_recorded`, as an
invariant after each operation of a sequence.
"""

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per import PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer


def first_whole_window(burn_in: int, period: int) -> int:
    """
    Find the oldest window of a full buffer that surely has its prefix and its state, by trying one after the other.

    The state before a row is kept in the place ``row // period``. The window of an anchor is unrolled from ``burn_in`` rows
    before it. That row must be held, and the newest row, which comes just before the oldest one, must not have its place,
    wherever in the arrays the two are.

    :param burn_in: steps before an anchor from which a window is unrolled
    :param period: rows that share a place
    :return: number of rows from the oldest one to the anchor
    """
    anchor = 0
    while True:
        unrolled = anchor - burn_in
        places = [((oldest - 1) // period, (oldest + unrolled) // period) for oldest in range(1, period + 1)]
        if unrolled >= 0 and all(newest != kept for newest, kept in places):
            return anchor
        anchor += 1


class Record:
    """
    All steps that a buffer was given. Step s of environment e has the id ``s * n_envs + e``.

    :param buffer: empty
    """

    def __init__(self, buffer: PrioritizedReplayBuffer):
        self.n_rows, self.n_envs = buffer.buffer_size, buffer.n_envs
        self.loses_oldest = buffer.optimize_memory_usage
        self.has_episodes = isinstance(buffer, HerReplayBuffer)
        self.has_windows = isinstance(buffer, PrioritizedSequenceReplayBuffer)
        if isinstance(buffer, PrioritizedSequenceReplayBuffer):
            self.period, self.burn_in = buffer.period, buffer.burn_in
            self.n_recorded = buffer.sequence_length + buffer.n_steps - 1
        #: whether the episode ended after each step, by environment
        self.ends: list[list[bool]] = [[] for _ in range(self.n_envs)]
        #: first step of the episode of each step, by environment
        self.firsts: list[list[int]] = [[] for _ in range(self.n_envs)]
        #: first step since the buffer was emptied
        self.begin = 0
        self.n_demonstrations = 0

    def copy(self) -> "Record":
        """Return a copy."""
        other = copy.copy(self)
        other.ends = [list(ends) for ends in self.ends]
        other.firsts = [list(firsts) for firsts in self.firsts]
        return other

    # ---- what was done

    def add(self, dones: Iterable[bool], envs: Iterable[int] | None = None, starts: Iterable[bool] | None = None) -> "Record":
        """
        Record one step of some environments.

        :param dones: whether the episode of each ends
        :param envs: environments; ``None``: all of them
        :param starts: where an episode starts with this step, whatever came before; ``None``: nowhere
        :return: itself
        """
        envs = range(self.n_envs) if envs is None else list(envs)
        if starts is not None:
            self.end_episodes([env for env, start in zip(envs, starts, strict=True) if start])
        for env, done in zip(envs, dones, strict=True):
            step = len(self.ends[env])
            self.firsts[env].append(step - self.length_of_episode(env))
            self.ends[env].append(bool(done))
        return self

    def end_episodes(self, envs: Iterable[int] | None = None) -> "Record":
        """
        Record that the newest steps are the last of their episodes.

        :param envs: environments; ``None``: all of them
        :return: itself
        """
        for env in range(self.n_envs) if envs is None else envs:
            if len(self.ends[env]) > self.begin:
                self.ends[env][-1] = True
        return self

    def reset(self) -> "Record":
        """Record that the buffer was emptied. Its next step is the first of a lap."""
        most = max(map(len, self.ends))
        self.begin = -(-most // self.n_rows) * self.n_rows
        self.ends = [[True] * self.begin for _ in range(self.n_envs)]
        self.firsts = [list(range(self.begin)) for _ in range(self.n_envs)]
        return self

    def stand_at(self, n_steps: int, ends: np.ndarray) -> "Record":
        """
        Record that ``pos`` or ``full`` was set by hand.

        :param n_steps: number of steps of every environment that are there from now on, as new transitions
        :param ends: ends of episodes in SB3's arrays, shape (n_rows, n_envs)
        :return: itself
        """
        self.reset()
        for row in range(n_steps):
            self.add(ends[row])
        return self

    # ---- what follows

    def length_of_episode(self, env: int) -> int:
        """Number of steps of the episode under way."""
        ends = self.ends[env]
        return 0 if len(ends) == self.begin or ends[-1] else len(ends) - self.firsts[env][-1]

    def held(self, env: int) -> range:
        """Steps of an environment that are in the buffer."""
        return range(max(len(self.ends[env]) - self.n_rows, self.begin), len(self.ends[env]))

    def held_ids(self) -> set[int]:
        """Ids of all transitions in the buffer."""
        return {step * self.n_envs + env for env in range(self.n_envs) for step in self.held(env)}

    def drawable_ids(self) -> set[int]:
        """Ids of all transitions that can be drawn."""
        found = set()
        for env in range(self.n_envs):
            is_finished = False
            for step in reversed(self.held(env)):
                is_finished |= self.ends[env][step]
                if self._is_drawable(env, step, is_finished):
                    found.add(step * self.n_envs + env)
        return found

    def _is_drawable(self, env: int, step: int, is_finished: bool) -> bool:
        held = self.held(env)
        is_full = len(held) == self.n_rows
        if self.loses_oldest and is_full:
            return step > held[0]  # the newest next observation has replaced its observation
        first = self.firsts[env][step]
        if self.has_episodes:
            return is_finished and first >= held[0]
        if self.has_windows:
            if (step - first) % self.period != 0:
                return False
            oldest = held[0] + (first_whole_window(self.burn_in, self.period) if is_full else 0)
            return step >= oldest and (is_finished or step + self.n_recorded <= len(self.ends[env]))
        return True


def drawn_by(buffer: PrioritizedReplayBuffer) -> tuple[set[int], set[int], int]:
    """
    Ask a buffer, by its public properties, what it holds and can draw.

    :param buffer: prioritized
    :return: ids of all transitions that it holds, ids of those with a mass, and the number of demonstrations with a mass
    """
    ids, masses = buffer.transition_ids, buffer.masses
    assert not (masses[ids < 0] > 0.0).any(), "an empty slot has a mass"
    demonstrations = buffer.demonstrations.buffer
    n_demonstrations = 0 if demonstrations is None else int(np.count_nonzero(demonstrations.masses))
    return set(ids[ids >= 0].tolist()), set(ids[masses > 0.0].tolist()), n_demonstrations


def agrees(buffer: PrioritizedReplayBuffer, record: Record) -> bool:
    """
    Tell whether a buffer holds and draws exactly what a record says.

    :param buffer: prioritized
    :param record: of all that was done to it
    :return: whether both agree
    """
    return drawn_by(buffer) == (record.held_ids(), record.drawable_ids(), record.n_demonstrations)


def assert_as_recorded(buffer: PrioritizedReplayBuffer, record: Record) -> None:
    """
    Check that a buffer holds and draws exactly what a record says, and that it counts it right.

    :param buffer: prioritized
    :param record: of all that was done to it
    """
    held, drawable, n_demonstrations = drawn_by(buffer)
    assert held == record.held_ids()
    assert drawable == record.drawable_ids()
    assert n_demonstrations == record.n_demonstrations == len(buffer.demonstrations)
    assert buffer.draw_candidates().n == len(drawable)


def assert_batch_as_recorded(batch: Any, record: Record) -> None:
    """
    Check that everything in a batch could be drawn.

    :param batch: from ``sample``
    :param record: of all that was done to the buffer
    """
    is_demonstration = getattr(batch, "is_demonstration", None)
    ids = batch.indices if is_demonstration is None else batch.indices[~is_demonstration]
    assert set(ids.tolist()) <= record.drawable_ids()
