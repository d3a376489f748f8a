"""Deliberate defects in the draw, the weights and the actor's batch, each of which the tests of these properties find."""

from typing import Any

import numpy as np
import pytest

from sb3_per import PERSAC, PrioritizedReplayBuffer
from tests import test_draws
from tests.algorithms import test_actor_batch


def test_weights_by_the_maximum_where_the_mean_was_asked_for(monkeypatch):
    weights = PrioritizedReplayBuffer._weights

    def by_the_maximum(self: Any, weighing: np.ndarray) -> np.ndarray:
        normalized = weights(self, weighing)
        return normalized / normalized.max() if self.weight_normalization == "mean" else normalized

    test_draws.test_weights_by_their_definition("plain", "proportional", {}, 0.4)
    monkeypatch.setattr(PrioritizedReplayBuffer, "_weights", by_the_maximum)
    with pytest.raises(AssertionError):
        test_draws.test_weights_by_their_definition("plain", "proportional", {}, 0.4)


def test_uniform_part_from_slots_that_cannot_be_drawn(monkeypatch):
    """Of the oldest step, whose observation the newest one has overwritten."""

    def all_slots(self: Any, n_newest: int) -> Any:
        return lambda numbers: (self._next_id - self._capacity + numbers) % self._capacity

    test_draws.test_a_share_of_uniform_draws("memory", "proportional", 0.25)
    monkeypatch.setattr(PrioritizedReplayBuffer, "_drawable_leaves", all_slots)
    with pytest.raises(AssertionError):
        test_draws.test_a_share_of_uniform_draws("memory", "proportional", 0.25)


def test_batch_of_the_actor_by_priority(monkeypatch):
    def by_priority(self: Any, batch_size: int, env: Any = None) -> Any:
        return self._map_obs(self._to_torch(), self._gather_observations(self._draw(batch_size)[0]))

    test_actor_batch.test_uniform_actor_batch_is_drawn_uniformly(PERSAC, monkeypatch)
    monkeypatch.setattr(PrioritizedReplayBuffer, "sample_observations", by_priority)
    with pytest.raises(AssertionError):
        test_actor_batch.test_uniform_actor_batch_is_drawn_uniformly(PERSAC, monkeypatch)
    with pytest.raises(AssertionError):
        test_actor_batch.test_sample_observations_is_uniform("plain", True)


@pytest.mark.parametrize("kwargs", [{}, dict(uniform_fraction=0.2)])
def test_a_weight_that_is_not_the_inverse_at_beta_1(kwargs, monkeypatch):
    """As if the uniform part had no share in P, and all slots were drawn from."""
    test_draws.test_weights_by_their_definition("memory", "proportional", kwargs, 1.0)
    monkeypatch.setattr(PrioritizedReplayBuffer, "_n_p", lambda self, weighing: weighing * self._capacity / self._tree.total)
    with pytest.raises(AssertionError):
        test_draws.test_weights_by_their_definition("memory", "proportional", kwargs, 1.0)
