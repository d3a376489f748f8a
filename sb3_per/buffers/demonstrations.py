"""
Demonstrations: transitions that stay, and are part of every batch.

RLPD (Ball et al. 2023, arXiv 2302.02948) draws half of every batch from offline data. DQfD (Hester et al. 2018, arXiv
1704.03732) keeps demonstrations for ever and raises their priority.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per.buffers.action_scaling import can_be_rescaled, is_scaled, require_inside, require_scaled, scaled, unscaled
from sb3_per.buffers.batches import Transitions, read_transitions
from sb3_per.buffers.eligibility import HeldTransitions, restore, state_of
from sb3_per.buffers.incoming import as_matrix, require_finite_rewards
from sb3_per.buffers.settings import PrioritySettings
from sb3_per.sampling.sampler import Sampler
from sb3_per.sampling.schemes import PriorityScheme
from sb3_per.storage.arrays import ArrayStorage, StepArrays, keyed, read_slots
from sb3_per.storage.n_step import NStepReturns
from sb3_per.storage.ring import Ring

#: Id of the first demonstration. Ids of experience stay far below.
FIRST_ID = 2**62

_ENV = np.zeros(1, np.int64)

# Number of observations to read at a time: as stacks of frames, all of them could take many times their RAM.
_BLOCK = 1024

#: A collection of transitions: their position, and where they are stored.
Part = tuple[Ring, ArrayStorage]


class Demonstrations:
    """
    A second ring, storage and sampler, and their share of each batch.

    The ring has one environment and grows instead of writing over anything: episode follows episode. Its transitions are
    drawn by the scheme of the buffer, in proportion to their mass among themselves.

    :param settings: of the buffer
    :param scheme: of the buffer
    :param returns: n-step returns of the buffer
    """

    def __init__(self, settings: PrioritySettings, scheme: PriorityScheme, returns: NStepReturns):
        self.settings, self.scheme, self.returns = settings, scheme, returns
        # Whether whole batches are demonstrations.
        self._alone = False
        # Whether no batch was drawn since demonstrations were added.
        self._are_unused = False
        # Largest training progress so far, from 0 to 1.
        self._progress = 0.0
        # None until there is a first demonstration.
        self.storage: ArrayStorage | None = None
        #: whether the storage holds steps that the ring does not count, because an interrupt came.
        self.holds_more = False
        self.sampler = self._make_sampler(1)
        self.ring = self.sampler.eligible.ring

    def _make_sampler(self, n_rows: int) -> Sampler:
        settings = self.settings.some("max_priority_interval stratified uniform_fraction unique")
        settings["initial_priority"] = "mean" if self.settings.initial_priority == "mean" else "max"
        settings["bonus"] = self.settings.demonstration_bonus
        return Sampler(self.scheme, HeldTransitions(Ring(n_rows, 1)), **settings)

    def __len__(self) -> int:
        """Number of demonstrations."""
        return self.ring.most

    def parts(self) -> list[Part]:
        """Return their ring and storage, in a list that is empty if there are none."""
        return [] if self.storage is None else [(self.ring, self.storage)]

    # ---- writing

    def add(self, columns: Iterable[StepArrays], n: int, like: ArrayStorage) -> None:
        """
        Store the steps of some environments. The last step of each ends an episode. They count once all are written.

        :param columns: of each environment, arrays of shape (n_steps, 1, ...), checked
        :param n: number of all steps
        :param like: storage of the same shapes
        :raises MemoryError: if there is no memory for them; nothing has changed then
        """
        end = len(self)
        storage = self._storage_of(end + n, like)
        self.holds_more = True
        for steps in columns:
            rows = np.arange(end, end + len(steps[3]))[:, None]
            storage.write(rows, _ENV, steps)
            end += len(rows)
            if not storage.dones[rows[-1]]:
                storage.truncate(rows[-1], _ENV)
        self._use(storage, self.state())
        self.ring.advance(_ENV, n)
        self.holds_more = False
        self._are_unused = True

    def reserve(self, n_rows: int, like: ArrayStorage) -> None:
        """
        Make room.

        :param n_rows: number of demonstrations that fit afterwards
        :param like: storage of the same shapes
        """
        self._use(self._storage_of(n_rows, like), self.state())

    def _storage_of(self, n_rows: int, like: ArrayStorage) -> ArrayStorage:
        """
        Return the storage, or a larger one with all demonstrations. It at least doubles, so that adding episode by episode
        takes linear time.
        """
        if self.storage is not None and n_rows <= self.ring.n_rows and not self.holds_more:
            return self.storage
        storage = like.emptied(max(n_rows, 2 * self.ring.n_rows), like.frames, n_envs=1, with_infos=False, folder=like.folder)
        if self.storage is not None:
            rows = np.arange(len(self))[:, None]
            storage.write(rows, _ENV, self.storage.read_steps(rows))
        return storage

    def _use(self, storage: ArrayStorage, state: dict[str, Any], keeps_masses: bool = True) -> None:
        """Use a storage that holds the demonstrations already, with their state, see :meth:`load`."""
        if storage is not self.storage:
            sampler = self._make_sampler(storage.n_rows)
            self._restore(sampler, state, keeps_masses)
            # Plain assignments only, so that an interrupt comes before all of them or after.
            self.storage = storage
            self.sampler = sampler
            self.ring = sampler.eligible.ring

    # ---- drawing

    @property
    def are_drawn(self) -> bool:
        """Whether batches may contain demonstrations."""
        return self._alone or self.settings.demonstration_fraction > 0.0

    @property
    def share(self) -> float:
        """Current share of the demonstrations in a batch, in [0, 1]."""
        start, end = self.settings.demonstration_fraction, self.settings.demonstration_fraction_end
        return start if end is None else start + self._progress * (end - start)

    @contextmanager
    def only(self) -> Iterator[None]:
        """Draw whole batches of demonstrations within a ``with`` block."""
        self._alone = True
        try:
            yield
        finally:
            self._alone = False

    def follow(self, progress_remaining: float) -> None:
        """
        Move the share with training progress. It never goes back, e.g. in a resumed run.

        :param progress_remaining: from 1 at the start to 0 at the end of training, as in SB3's schedules; below 0 if the last
            steps of several environments go beyond the end
        """
        self._progress = max(self._progress, 1.0 - max(progress_remaining, 0.0))

    def n_in(self, batch_size: int, has_experience: bool) -> int:
        """
        Count the demonstrations in the next batch.

        :param batch_size: number of transitions
        :param has_experience: whether any other transition can be drawn
        :return: how many of them are demonstrations
        :raises ValueError: if there are none to draw
        """
        if not self.are_drawn:
            if self._are_unused:
                self._are_unused = False
                warnings.warn(
                    f"The buffer has {len(self)} demonstrations, and demonstration_fraction=0.0 draws none of them: set their "
                    "share, e.g. replay_buffer_kwargs=dict(demonstration_fraction=0.25)"
                )
            return 0
        self._are_unused = False
        share = 1.0 if self._alone else self.share
        if len(self) == 0 and share > 0.0:
            raise ValueError(
                f"demonstration_fraction={self.settings.demonstration_fraction} needs demonstrations, and the buffer has "
                "none. Add some first: buffer.add_demonstrations(...), buffer.add_demonstrations_from(other_buffer), or "
                "from_minari(dataset, buffer, demonstrations=True)"
            )
        return batch_size if len(self) and not has_experience else round(share * batch_size)

    def added_to(self, slots: np.ndarray, n_p: np.ndarray, batch_size: int, n_eligible: int) -> tuple[np.ndarray, np.ndarray]:
        """
        Draw the rest of a batch, and count N P over experience and demonstrations together.

        :param slots: slots of experience, int64 of shape (n,), with n below ``batch_size``
        :param n_p: their N P, counting experience alone, float64 of shape (n,)
        :param batch_size: number of transitions of the batch
        :param n_eligible: number of transitions of experience that can be drawn
        :return: slots of the batch, those of demonstrations plus ``FIRST_ID``, int64, and N P, float64, both of shape
            (batch_size,)
        """
        self.sampler.settle()
        own_slots, own_n_p = self.sampler.draw(batch_size - len(slots))
        n_all, share = n_eligible + len(self), len(own_slots) / batch_size
        n_p = np.concatenate([n_p * ((1.0 - share) * n_all / max(n_eligible, 1)), own_n_p * (share * n_all / len(self))])
        return np.concatenate([slots, own_slots + FIRST_ID]), n_p

    def n_before(self, slots: np.ndarray) -> int:
        """
        Count the slots of experience in a batch.

        :param slots: drawn slots; those of demonstrations come last, plus ``FIRST_ID``
        :return: number of slots before them
        """
        # Binary search: slots of experience are not sorted, but all of them are below FIRST_ID.
        return int(slots.searchsorted(FIRST_ID))

    def draw_observations(self, n: int) -> Any:
        """
        Draw observations uniformly.

        :param n: how many
        :return: observations drawn uniformly, shape (n, ...), or a dictionary of them
        """
        assert self.storage is not None
        self.sampler.settle()
        return self.storage.read_observations(self.sampler.draw_uniformly(n))

    def read(self, slots: np.ndarray) -> Transitions:
        """
        Read demonstrations.

        :param slots: of demonstrations, plus ``FIRST_ID``, int64 of shape (n,)
        :return: these demonstrations
        """
        assert self.storage is not None
        *arrays, ids = read_transitions(self.storage, self.ring, self.returns, slots - FIRST_ID)
        return (*arrays, ids + FIRST_ID)

    def metrics(self, is_demonstration: np.ndarray, td_errors: Any) -> dict[str, np.floating]:
        """
        Summarize a batch for the log.

        :param is_demonstration: bool of shape (batch_size,)
        :param td_errors: signed TD errors, an array or a tensor on any device, shape (batch_size, n_critics)
        :return: numbers by their name in the log: share of demonstrations, mean ``|td|`` of both parts, and mean priority p of
            the demonstrations. Without numbers of a part that the batch lacks
        """
        errors = np.abs(as_matrix(td_errors, len(is_demonstration)), dtype=np.float64)
        of_these = errors[is_demonstration]
        metrics = {"demonstrations/share": is_demonstration.mean()}
        if len(of_these):
            priorities = self.scheme.priority(self.scheme.reduce(of_these)) + self.settings.demonstration_bonus
            metrics["demonstrations/td_error"] = of_these.mean()
            metrics["demonstrations/mean_priority"] = priorities.mean()
        if len(of_these) < len(errors):
            metrics["demonstrations/td_error_of_experience"] = errors[~is_demonstration].mean()
        return metrics

    def begin_statistics(self, normalize: VecNormalize | None) -> None:
        """
        Let the statistics of a VecNormalize that has seen no step begin with the demonstrations, as if its environments had
        made these steps.

        :param normalize: wrapper whose statistics may change; ``None``: there is none
        """
        storage = self.storage
        if storage is None or normalize is None or not normalize.training:
            return
        if normalize.ret_rms.count >= 1.0:  # every step counts there; resets count in the statistics of observations alone
            return
        if normalize.norm_obs:
            for begin in range(0, len(self), _BLOCK):
                observations = keyed(storage.read_observations(np.arange(begin, min(begin + _BLOCK, len(self)))))
                for key, statistics in keyed(normalize.obs_rms).items():
                    statistics.update(observations[key])
        returns = np.empty(len(self))
        discounted = 0.0
        for i, (reward, done) in enumerate(zip(storage.rewards[: len(self), 0], storage.dones[: len(self), 0], strict=True)):
            discounted = discounted * normalize.gamma + float(reward)
            returns[i] = discounted
            if done:
                discounted = 0.0
        normalize.ret_rms.update(returns)

    # ---- saving

    def state(self) -> dict[str, Any]:
        """
        Return the share, the ring and the masses.

        :return: all that is not in the storage: numbers, arrays, and dictionaries of these
        """
        return {"progress": self._progress, **state_of(self.sampler)}

    def load(self, state: dict[str, Any], keeps_masses: bool = True) -> None:
        """
        Restore a state.

        :param state: from :meth:`state` of demonstrations whose storage is there already; there may be room for more
        :param keeps_masses: whether they are of the same scheme; otherwise all get the largest priority
        :raises ValueError: if it contradicts itself. Discard the demonstrations after this error
        """
        self._restore(self.sampler, state, keeps_masses)

    def _restore(self, sampler: Sampler, state: dict[str, Any], keeps_masses: bool) -> None:
        """Restore a state in a sampler, see :meth:`load`."""
        progress = float(state["progress"])
        if not 0.0 <= progress <= 1.0:
            raise ValueError(f"progress must be in [0, 1], not {progress}")
        if state["ring"]["begin"] or max(state["ring"]["added"]) > sampler.eligible.ring.n_rows:
            raise ValueError(f"demonstrations are never overwritten, but their ring stands at {state['ring']}")
        restore(sampler, state, keeps_masses)
        self._progress = progress

    def copy(self, other: "Demonstrations", like: ArrayStorage, keeps_masses: bool) -> None:
        """
        Copy the demonstrations of another buffer; storage is shared, unless its observations have another form.

        :param other: not to be used any more
        :param like: storage whose form they have from now on
        :param keeps_masses: whether it has the same scheme
        """
        if other.storage is not None:
            self.holds_more = other.holds_more
            storage = other.storage.converted(other.ring, like.frames, like.folder, like.store_class)
            self._use(storage, other.state(), keeps_masses)


# ---- what comes in


def require_demonstrations_in(other: Any, observation_space: spaces.Space, action_space: spaces.Space) -> None:
    """
    Check that the transitions of another buffer can become demonstrations.

    :param other: buffer with the transitions
    :param observation_space: observation space that it must have
    :param action_space: action space that it must have, except for the bounds of a Box
    :raises TypeError: for anything but a buffer, e.g. a model
    :raises ValueError: for other spaces, or a reward that is NaN or infinite
    """
    if not isinstance(other, ReplayBuffer):
        hint = ": give model.replay_buffer" if isinstance(other, BaseAlgorithm) else ""
        raise TypeError(f"add_demonstrations_from() takes a replay buffer, not a {type(other).__name__}{hint}")
    if other.observation_space != observation_space:
        raise ValueError(f"The other buffer has observation_space {other.observation_space}, and this one {observation_space}")
    has_other_bounds = can_be_rescaled(other.action_space, action_space) and is_scaled(other.action_space)
    if other.action_space != action_space and not (has_other_bounds and is_scaled(action_space)):
        raise ValueError(f"The other buffer has action_space {other.action_space}, and this one {action_space}")
    require_finite_rewards(other.rewards[: other.size()])


def require_actions_in(parts: Sequence[Part], recorded: spaces.Space, space: spaces.Space) -> None:
    """
    Check the actions of another buffer.

    :param parts: rings and storages of the other buffer
    :param recorded: action space of the other buffer
    :param space: action space that the demonstrations are for
    :raises ValueError: for actions that are not scaled, or that are outside of other bounds
    """
    actions = np.concatenate([read_slots(storage.actions, slots) for storage, slots in _recordings_in(parts)])
    if recorded == space:
        require_scaled(actions, space)
    else:
        require_inside(unscaled(actions, recorded), space)


def columns_of(parts: Sequence[Part], recorded: spaces.Space, space: spaces.Space) -> Iterator[StepArrays]:
    """
    Read a buffer environment by environment. Actions that were recorded with other bounds are scaled anew.

    :param parts: rings and storages of the buffer
    :param recorded: action space of the buffer
    :param space: action space that the steps are for
    :return: of each environment all complete steps that it holds, arrays of shape (n, 1, ...)
    """
    for storage, slots in _recordings_in(parts):
        obs, next_obs, actions, *rest = storage.read_steps(slots[:, None])
        if recorded != space:
            actions = scaled(unscaled(actions, recorded), space).reshape(actions.shape)
        yield (obs, next_obs, actions, *rest)


def _recordings_in(parts: Sequence[Part]) -> Iterator[tuple[ArrayStorage, np.ndarray]]:
    """Of each environment that has complete steps, return the storage, and their slots, oldest first, int64 of shape (n,)."""
    for ring, storage in parts:
        for env in range(ring.n_envs):
            steps = np.arange(ring.oldest[env], ring.added[env])
            if len(steps):
                yield storage, steps % ring.n_rows * ring.n_envs + env
