"""Count draws, and log statistics of the priorities during a run."""

import math
import warnings
from collections import deque

import numpy as np
from numpy.typing import ArrayLike
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import TensorBoardOutputFormat

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.utils.checks import check_argument, integer
from sb3_per.utils.compiled import kernel
from sb3_per.utils.parents import overrides


class DrawRecord:
    """
    Count draws, and keep the newest batches. This takes a few microseconds per batch and 12 bytes per slot.

    :param capacity: number of slots, over all environments
    :param n_batches: number of batches to keep; ``None``: all
    """

    def __init__(self, capacity: int, n_batches: int | None = 100):
        #: ids and weights of the newest batches, and the id that the next transition had then
        self.batches: deque[tuple[np.ndarray, np.ndarray, int]] = deque(maxlen=n_batches)
        self._counts = np.zeros(capacity, dtype=np.int32)
        # Id of the transition that each count belongs to: a new transition in the slot starts at 0.
        self._counted_ids = np.full(capacity, -1)

    def emptied(self, capacity: int) -> "DrawRecord":
        """
        Make an empty record that keeps as many batches.

        :param capacity: number of slots
        :return: the new record
        """
        return DrawRecord(capacity, self.batches.maxlen)

    def add(self, ids: np.ndarray, weights: ArrayLike, next_id: int) -> None:
        """
        Count a batch.

        :param ids: ids of the drawn transitions, int64 array of shape (batch_size,)
        :param weights: importance-sampling weights, shape (batch_size, 1); copied
        :param next_id: id of the next transition
        """
        _count(ids, self._counts, self._counted_ids)
        self.batches.append((ids.copy(), np.asarray(weights).copy(), next_id))

    def counts(self, ids: np.ndarray) -> np.ndarray:
        """
        Count the draws of transitions.

        :param ids: ids of stored transitions, of any shape
        :return: number of draws of each, in the same shape
        """
        slots = ids % len(self._counts)
        return np.where(self._counted_ids[slots] == ids, self._counts[slots], 0)


@kernel
def _count(ids: np.ndarray, counts: np.ndarray, counted_ids: np.ndarray) -> None:
    """Count a batch. NumPy takes eight times as long."""
    for i in range(ids.size):
        slot = ids[i] % counts.size
        if counted_ids[slot] != ids[i]:
            counted_ids[slot] = ids[i]
            counts[slot] = 0
        counts[slot] += 1


@overrides("_on_training_start", "_on_step")
class PriorityMonitor(BaseCallback):
    """
    Log priorities, weights and ages of draws to all outputs of the logger: TensorBoard, terminal, CSV, JSON.

    Histograms:

    - ``per/priorities``: masses of all transitions that can be drawn;
    - ``per/weights``: importance-sampling weights of the newest draws;
    - ``per/age``: age of the newest draws, in transitions that were stored since.

    Scalars:

    - ``per/never_drawn``: share of the stored transitions that were never drawn, or not since counting began;
    - ``per/buffer_effective_sample_size``: Kish's (sum m)^2 / (N sum m^2) over the masses, in (0, 1]; 1 if draws are uniform.

    Outputs other than TensorBoard show three quantiles of each histogram, such as ``per/priorities_p05``, ``_p50`` and
    ``_p95``. They appear when the algorithm logs next, see ``log_interval`` of ``learn()``.

    :param interval: number of time steps between two records
    :param n_batches: number of the newest batches that weights and ages are taken from
    :param max_transitions: largest number of transitions to look at, evenly spaced
    :param verbose: see ``BaseCallback``
    :raises ValueError: for a number below 1, or a model without a prioritized buffer
    :warns UserWarning: if the logger writes nowhere
    """

    def __init__(self, interval: int = 10_000, n_batches: int = 100, max_transitions: int = 20_000, verbose: int = 0):
        super().__init__(verbose)
        for name, value in (("interval", interval), ("n_batches", n_batches), ("max_transitions", max_transitions)):
            check_argument(name, value, integer())
        self.interval, self.n_batches, self.max_transitions = interval, n_batches, max_transitions
        self._last_record = 0

    def _on_training_start(self) -> None:
        buffer = getattr(self.model, "replay_buffer", None)
        if not isinstance(buffer, PrioritizedReplayBuffer):
            raise ValueError(f"PriorityMonitor needs a prioritized replay buffer, not {type(buffer).__name__}")
        if not self.logger.output_formats:
            warnings.warn(
                "PriorityMonitor has nowhere to write. Give the algorithm tensorboard_log=... or verbose=1, or a logger: "
                'model.set_logger(stable_baselines3.common.logger.configure(folder, ["csv"]))'
            )
        self._last_record = self.num_timesteps
        if buffer.draw_record is None or buffer.draw_record.batches.maxlen != self.n_batches:
            buffer.draw_record = DrawRecord(buffer.buffer_size * buffer.n_envs, self.n_batches)

    def _on_step(self) -> bool:
        if self.num_timesteps - self._last_record >= self.interval:
            self._last_record = self.num_timesteps
            self._record()
        return True

    def _record(self) -> None:
        formats = self.logger.output_formats
        if not formats:
            return
        histograms, scalars = statistics(self.model.replay_buffer, self.max_transitions)  # type: ignore[attr-defined]
        record = {f"per/{name}": value for name, value in {**histograms, **scalars}.items()}
        for form in formats:
            if isinstance(form, TensorBoardOutputFormat):  # at once: the logger would write later, at another step
                form.write(record, dict.fromkeys(record, ()), self.num_timesteps)
        quantiles = {
            f"{name}_p{percent:02d}": float(np.percentile(values, percent))
            for name, values in histograms.items()
            for percent in (5, 50, 95)
        }
        for name, value in {**scalars, **quantiles}.items():
            self.logger.record(f"per/{name}", value, exclude="tensorboard")


def statistics(
    buffer: PrioritizedReplayBuffer, max_transitions: int | None = None
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """
    Compute the statistics of :class:`PriorityMonitor`.

    :param buffer: prioritized buffer; weights, ages and draws need its ``draw_record``
    :param max_transitions: largest number of transitions to look at, evenly spaced; ``None``: all
    :return: samples of histograms, and scalars, by name; those without data are missing
    """
    histograms: dict[str, np.ndarray] = {}
    scalars: dict[str, float] = {}
    all_masses = buffer.masses.reshape(-1)
    slots = np.flatnonzero(all_masses)
    if max_transitions is not None:
        stride = max(-(-slots.size // max_transitions), 1)
        while math.gcd(stride, buffer.n_envs) > 1:  # so that the stride visits all environments
            stride += 1
        slots = slots[::stride]
    if slots.size:
        histograms["priorities"] = masses = all_masses[slots]
        # Relative to the largest: the square of a mass may overflow.
        relative = masses / masses.max()
        scalars["buffer_effective_sample_size"] = float(relative.sum() ** 2 / np.square(relative).sum() / masses.size)
    record = buffer.draw_record
    if record is not None and record.batches:
        histograms["weights"] = np.concatenate([weights for _, weights, _ in record.batches]).ravel()
        histograms["age"] = np.concatenate([next_id - 1 - ids for ids, _, next_id in record.batches])
        if slots.size:
            scalars["never_drawn"] = float(np.mean(record.counts(buffer.numbering.in_slots(slots)) == 0))
    return histograms, scalars
