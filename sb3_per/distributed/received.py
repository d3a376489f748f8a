"""Chunks after their arrival: which of their steps are counted, stored, and shown to callbacks."""

from dataclasses import replace
from typing import Any

import cloudpickle
import numpy as np

from sb3_per.distributed.messages import Chunk, map_obs

# Fields of a chunk that are stored.
_STORED = ("obs", "next_obs", "actions", "rewards", "dones", "timeouts", "td_errors")


class ReceivedChunk:
    """
    A copy of a chunk, and how far the learner has used it.

    :param chunk: the chunk; its arrays may lie in Ray's object store, which must become free
    :param n_left: transitions that the run has room for; of a larger chunk, the last transitions do not count
    """

    def __init__(self, chunk: Chunk, n_left: int):
        self.data = chunk = _copied(chunk)
        self.n_steps, self.n_envs = chunk.rewards.shape
        #: transitions that count
        self.n_wanted = min(n_left, self.n_steps * self.n_envs)
        #: whole steps that count, and environments that count in the step after them
        self.n_whole, self.n_rest = divmod(self.n_wanted, self.n_envs)
        #: steps that belong to a tick, and steps that are stored
        self.n_taken = self.n_stored = 0
        #: whether the next step of the actor does not follow, because a chunk was lost
        self.is_cut = False
        #: infos that say something, by number of the transition
        self.infos = {step * self.n_envs + env: info for step, env, info in cloudpickle.loads(chunk.infos)}
        #: what callbacks see, one entry per transition
        self.seen = {
            "buffer_actions": _flat(chunk.actions),
            "new_obs": map_obs(_flat, chunk.next_obs),
            "rewards": _flat(chunk.rewards),
            "dones": _flat(chunk.dones).astype(bool),
        }

    def steps(self, first: int, end: int) -> dict[str, Any]:
        """
        Return steps as arguments of ``add_steps``.

        :param first: first step
        :param end: step after the last
        :return: the arguments, without the columns
        """
        named = ((name, getattr(self.data, name)) for name in _STORED)
        return {name: map_obs(lambda part: part[first:end], steps) for name, steps in named if steps is not None}

    def rest(self) -> dict[str, Any]:
        """
        Return the last step of a run in which only the first ``n_rest`` environments count.

        :return: arguments of ``add_steps``, without the columns
        """
        last = self.steps(self.n_whole, self.n_whole + 1)
        return {name: map_obs(lambda part: part[:, : self.n_rest], steps) for name, steps in last.items()}

    def take(self, n_steps: int) -> "Piece":
        """
        Take the next steps for a tick.

        :param n_steps: most steps to take
        :return: the steps
        """
        first = self.n_taken
        self.n_taken = min(first + n_steps, self.n_steps)
        return Piece(self, first, self.n_taken)


class Piece:
    """
    Successive steps of a chunk that belong to the same tick.

    :param chunk: the chunk
    :param first: first step
    :param end: step after the last
    """

    __slots__ = ("chunk", "end", "first")

    def __init__(self, chunk: ReceivedChunk, first: int, end: int):
        self.chunk, self.first, self.end = chunk, first, end

    def seen(self) -> dict[str, Any]:
        """
        Return what callbacks find in ``locals``.

        :return: arrays and infos with one entry per transition that counts
        """
        chunk = self.chunk
        first, end = self.first * chunk.n_envs, min(self.end * chunk.n_envs, chunk.n_wanted)
        seen: dict[str, Any] = {name: map_obs(lambda part: part[first:end], every) for name, every in chunk.seen.items()}
        said = chunk.infos.get
        seen["infos"] = [said(i) or {"TimeLimit.truncated": False} for i in range(first, end)]
        return seen


def seen_in(pieces: list[Piece]) -> dict[str, Any]:
    """
    Join what callbacks find in ``locals``.

    :param pieces: the pieces of a tick
    :return: arrays and infos with one entry per transition that counts
    """
    first, *others = (piece.seen() for piece in pieces)
    for other in others:
        for name, part in other.items():
            if isinstance(part, dict):
                first[name] = {key: np.concatenate((first[name][key], part[key])) for key in part}
            else:
                first[name] = first[name] + part if name == "infos" else np.concatenate((first[name], part))
    return first


def _copied(chunk: Chunk) -> Chunk:
    arrays = {name: value for name, value in vars(chunk).items() if isinstance(value, (np.ndarray, dict))}
    return replace(chunk, **{name: map_obs(np.array, value) for name, value in arrays.items()})


def _flat(steps: np.ndarray) -> np.ndarray:
    return steps.reshape(-1, *steps.shape[2:])
