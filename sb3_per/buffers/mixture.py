"""
Demonstrations: transitions that stay, and are part of every batch.

RLPD (Ball et al. 2023, arXiv 2302.02948) draws half of every batch from offline data. DQfD (Hester et al. 2018, arXiv
1704.03732) keeps demonstrations for ever.
"""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sb3_per.buffers.transition_set import CompleteTransitions, Drawn, RawBatch, TransitionSet
from sb3_per.sampling.candidates import NO_SLOTS
from sb3_per.sampling.sampler import DrawSettings, Sampler
from sb3_per.sampling.schemes import PriorityScheme
from sb3_per.storage.make import converted, make_storage
from sb3_per.storage.mapped import Folder
from sb3_per.storage.n_step import NStepReturns
from sb3_per.storage.nested import join
from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import Layout, Steps, Storage

#: Id of the first demonstration. Ids of experience stay far below.
FIRST_ID = 2**62


class Demonstrations(TransitionSet):
    """
    A set with one environment that grows instead of writing over anything: episode follows episode.

    :param layout: in which they are stored
    :param folder: folder for files; ``None``: in RAM
    :param scheme: of the buffer
    :param n_step_returns: of the buffer
    :param draw: settings of their draw
    """

    def __init__(
        self,
        layout: Layout,
        folder: Folder | None,
        scheme: PriorityScheme,
        n_step_returns: NStepReturns,
        draw: DrawSettings,
    ):
        self.layout = layout
        self.folder = folder
        # One row in RAM, until there is a first demonstration.
        storage = make_storage(layout.as_arrays(), 1, 1, None)
        ring = Ring(1, 1)
        super().__init__(ring, storage, Sampler(scheme, CompleteTransitions(ring), draw), n_step_returns)
        #: whether the storage holds steps that the ring does not count, because an interrupt came
        self.holds_more = False

    @property
    def has_room(self) -> bool:
        """Whether there ever was a demonstration, or room for one."""
        return self.ring.n_rows > 1

    def __len__(self) -> int:
        """Number of demonstrations."""
        return self.ring.max_next_step

    def __bool__(self) -> bool:
        """A set without demonstrations is there, too."""
        return True

    def add(self, columns: Iterable[Steps], n: int) -> None:
        """
        Store the steps of some environments. The last step of each ends an episode. They count once all are written.

        :param columns: of each environment, checked steps of shape (n_steps, 1, ...)
        :param n: number of all steps
        :raises MemoryError: if there is no memory for them; nothing has changed then
        """
        end = len(self)
        self.reserve(end + n)
        self.holds_more = True
        for steps in columns:
            rows = np.arange(end, end + len(steps.rewards))[:, None]
            self.storage.write(rows, self.ring.all_envs, steps)
            end += len(rows)
            if not self.storage.dones[rows[-1]]:
                self.storage.truncate(rows[-1], self.ring.all_envs)
        new = np.arange(len(self), end)
        with self.sampler.changing_candidates():
            self.ring.advance(self.ring.all_envs, n)
            self.sampler.insert_new(new)
        self.holds_more = False

    def reserve(self, n: int) -> None:
        """
        Make room. The storage at least doubles, so that adding episode by episode takes linear time.

        :param n: number of demonstrations that fit afterwards
        :raises MemoryError: if there is no memory for them; nothing has changed then
        """
        if self.has_room and n <= self.ring.n_rows and not self.holds_more:
            return
        storage = make_storage(self.layout, max(n, 2 * self.ring.n_rows), 1, self.folder)
        rows = np.arange(len(self))[:, None]
        storage.write(rows, self.ring.all_envs, self.storage.read_steps(rows))
        self._use(storage, self.state(), keeps_masses=True)

    def _use(self, storage: Storage, state: dict[str, Any], keeps_masses: bool) -> None:
        """Use another storage, which holds the steps of a state."""
        sampler = self.sampler
        grown = Ring(storage.n_rows, 1)
        new = TransitionSet(
            grown,
            storage,
            Sampler(sampler.scheme, CompleteTransitions(grown), sampler.draw_settings),
            self.n_step_returns,
        )
        new.load(state, keeps_masses)
        # Plain assignments only: see Invariants in the developer guide.
        self.storage = storage
        self.ring = grown
        self.sampler = new.sampler

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:
        """See :meth:`TransitionSet.load`. There may be room for more."""
        if state["ring"]["begin"] or max(state["ring"]["added"]) > self.ring.n_rows:
            raise ValueError(f"demonstrations are never overwritten, but their ring stands at {state['ring']}")
        super().load(state, keeps_masses)

    def take_over(self, other: "Demonstrations", keeps_masses: bool) -> None:
        """
        Use the demonstrations of another buffer; the storage is shared, unless its observations have another layout.

        :param other: not to be used any more
        :param keeps_masses: whether it has the same scheme
        """
        if not other.has_room:
            return
        self.holds_more = other.holds_more
        storage = converted(other.storage, other.ring, self.layout, self.folder)
        self._use(storage, other.state(), keeps_masses)


class LinearShare:
    """
    Share of the demonstrations in a batch, which falls linearly with training progress.

    :param start: share at the start, in [0, 1]
    :param end: share at the end; ``None``: it stays
    """

    def __init__(self, start: float, end: float | None):
        self.start = start
        self.end = end
        #: largest training progress so far, from 0 to 1
        self.progress = 0.0

    @property
    def value(self) -> float:
        """Current share, in [0, 1]."""
        if self.end is None:
            return self.start
        return self.start + self.progress * (self.end - self.start)

    def follow(self, progress_remaining: float) -> None:
        """
        Move the share with training progress. It never goes back, e.g. in a resumed run.

        :param progress_remaining: from 1 at the start to 0 at the end of training, as in SB3's schedules; below 0 if the last
            steps of several environments go beyond the end
        """
        self.progress = max(self.progress, 1.0 - max(progress_remaining, 0.0))

    def load(self, progress: float) -> None:
        """
        Restore the progress.

        :param progress: from 0 to 1
        :raises ValueError: for another number
        """
        if not 0.0 <= progress <= 1.0:
            raise ValueError(f"progress must be in [0, 1], not {progress}")
        self.progress = float(progress)


class Mixture:
    """
    Batches of experience and, after it, a share of demonstrations.

    :param experience: what the agent has seen
    :param demonstrations: what it was given
    :param share: share of the demonstrations in a batch
    """

    def __init__(self, experience: TransitionSet, demonstrations: Demonstrations, share: LinearShare):
        self.experience = experience
        self.demonstrations = demonstrations
        self.share = share
        #: whether no batch was drawn since demonstrations were added
        self.are_undrawn = False
        # Whether whole batches are demonstrations.
        self._only_demonstrations = False

    @contextmanager
    def only_demonstrations(self) -> Iterator[None]:
        """Draw whole batches of demonstrations within a ``with`` block."""
        self._only_demonstrations = True
        try:
            yield
        finally:
            self._only_demonstrations = False

    @property
    def draws_demonstrations(self) -> bool:
        """Whether batches may contain demonstrations."""
        return self._only_demonstrations or self.share.start > 0.0

    def draw(self, batch_size: int, series_progress: float | None = None) -> Drawn:
        """
        Draw both parts, and count N P over both together.

        :param batch_size: number of slots
        :param series_progress: see :meth:`TransitionSet.draw`
        :return: the slots, those of experience first
        :raises ValueError: if nothing can be drawn, or there are no demonstrations where a share of them is wanted
        """
        n = self._n_experience_in(batch_size)
        if n == batch_size:
            return self.experience.draw(batch_size, series_progress)
        if n > 0:
            experience = self.experience.draw(n, series_progress)
        else:
            experience = Drawn(NO_SLOTS, np.empty(0), 0)
        demonstrations = self.demonstrations.draw(batch_size - n)
        share = (batch_size - n) / batch_size
        n_candidates = self.experience.sampler.candidates.n
        n_all = n_candidates + len(self.demonstrations)
        # N P over both: n P of a set alone, times its share of the batch, times N / n.
        of_experience = experience.relative_probabilities * ((1.0 - share) * n_all / max(n_candidates, 1))
        of_demonstrations = demonstrations.relative_probabilities * (share * n_all / len(self.demonstrations))
        slots = np.concatenate([experience.slots, demonstrations.slots])
        return Drawn(slots, np.concatenate([of_experience, of_demonstrations]), n_experience=n)

    def _n_experience_in(self, batch_size: int) -> int:
        """
        Count the transitions of experience in the next batch.

        :raises ValueError: if there are no demonstrations where a share of them is wanted
        """
        can_draw_experience = self.experience.can_draw()
        self._warn_if_unused()
        if not self.draws_demonstrations:
            return batch_size
        share = 1.0 if self._only_demonstrations else self.share.value
        if len(self.demonstrations) == 0:
            if share > 0.0:
                raise ValueError(
                    f"demonstration_fraction={self.share.start} needs demonstrations, and the buffer has none. Add some "
                    "first: buffer.add_demonstrations(...), buffer.add_demonstrations_from(other_buffer), or "
                    "from_minari(dataset, buffer, demonstrations=True)"
                )
            return batch_size
        if not can_draw_experience:
            return 0
        return batch_size - round(share * batch_size)

    def _warn_if_unused(self) -> None:
        """Warn at the first draw after demonstrations were added, if it draws none of them."""
        if self.are_undrawn and not self.draws_demonstrations:
            warnings.warn(
                f"The buffer has {len(self.demonstrations)} demonstrations, and demonstration_fraction=0.0 draws none of "
                "them: set their share, e.g. replay_buffer_kwargs=dict(demonstration_fraction=0.25)"
            )
        self.are_undrawn = False

    def read(self, drawn: Drawn) -> Any:
        """
        Read both parts, and join them.

        :param drawn: from :meth:`draw`
        :return: the batch
        """
        n = drawn.n_experience
        if n == len(drawn.slots):
            return self.experience.read(drawn)
        demonstrations = self.demonstrations.read(
            Drawn(drawn.slots[n:], drawn.relative_probabilities[n:], len(drawn.slots) - n)
        )
        demonstrations.ids[:] += FIRST_ID
        if n == 0:
            return demonstrations
        experience = self.experience.read(Drawn(drawn.slots[:n], drawn.relative_probabilities[:n], n))
        return RawBatch(*map(join, experience, demonstrations))

    def are_demonstrations(self, drawn: Drawn) -> np.ndarray | None:
        """
        Tell which rows of a batch are demonstrations.

        :param drawn: from :meth:`draw`
        :return: bool of shape (batch_size,); ``None`` where none are ever drawn
        """
        if not self.draws_demonstrations:
            return None
        return np.arange(len(drawn.slots)) >= drawn.n_experience

    def draw_observations(self, n: int) -> Any:
        """
        Draw observations uniformly from each part, see :meth:`TransitionSet.draw_observations`.

        :param n: number of observations
        :return: array of shape (n, ...), or a dictionary of them
        """
        n_experience = self._n_experience_in(n)
        if n_experience == n:
            return self.experience.draw_observations(n)
        if n_experience == 0:
            return self.demonstrations.draw_observations(n)
        experience = self.experience.draw_observations(n_experience)
        return join(experience, self.demonstrations.draw_observations(n - n_experience))

    def update(self, ids: np.ndarray, td_errors: np.ndarray) -> int:
        """
        Set the priorities of both parts. Both are checked before either is written.

        :param ids: transition ids, int64 of shape (n,)
        :param td_errors: signed or absolute TD errors, shape (n, n_critics)
        :return: how many ids were not stale
        :raises IndexError: for an id that was never issued
        :raises ValueError: for a TD error that is NaN or infinite. Nothing has changed in either case
        """
        is_demonstration = ids >= FIRST_ID
        n = len(ids) - int(np.count_nonzero(is_demonstration))
        if n == len(ids):
            return self.experience.update(ids, td_errors)
        if np.count_nonzero(is_demonstration[:n]):  # otherwise they come last, as in a batch: slices are faster than masks
            order = np.argsort(is_demonstration, kind="stable")
            ids = ids[order]
            td_errors = td_errors[order]
        slots, tree_values, largest_priority = self._checked_demonstrations(ids[n:] - FIRST_ID, td_errors[n:])
        n_written = self.experience.update(ids[:n], td_errors[:n])
        self.demonstrations.sampler.update(slots, tree_values, largest_priority)
        return n_written + len(slots)

    def _checked_demonstrations(self, ids: np.ndarray, td_errors: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        """See :meth:`TransitionSet.checked_update`. Messages name the ids that the caller knows."""
        try:
            return self.demonstrations.checked_update(ids, td_errors)
        except IndexError as error:
            raise IndexError(f"Ids of demonstrations count from {FIRST_ID} on. {error}") from None

    # ---- saving

    def state(self) -> dict[str, Any]:
        """Return what the demonstrations add to the state of a buffer; nothing if there are none."""
        if len(self.demonstrations) == 0:
            return {}
        return {"demonstrations": {"progress": self.share.progress, **self.demonstrations.state()}}

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:
        """
        Restore a state.

        :param state: from :meth:`state`, of demonstrations whose storage is there already
        :param keeps_masses: whether it is of the same scheme
        :raises ValueError: if it contradicts itself. Discard the buffer after this error
        """
        if "demonstrations" in state:
            self.share.load(state["demonstrations"]["progress"])
            self.demonstrations.load(state["demonstrations"], keeps_masses)
