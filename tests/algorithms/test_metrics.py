"""Numbers for the log: means over the gradient steps of a call of ``train``."""

from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_per import PERDQN, Proportional
from sb3_per.algorithms.metrics import Recorded, demonstration_metrics, record, weight_metrics
from tests.helpers.algorithms import filled_model


def test_a_number_that_only_some_steps_have_is_averaged_over_these_steps():
    class Rare(PERDQN):
        def _update(self, batch: Any, gradient_step: int) -> Any:
            td_errors, metrics = super()._update(batch, gradient_step)
            if gradient_step % 3 == 0:
                metrics["rare"] = th.tensor(float(gradient_step))
            return td_errors, metrics

    model = filled_model(Rare, "MlpPolicy", "CartPole-v1")
    model.train(7, batch_size=8)
    assert model.logger.name_to_value["train/rare"] == (0 + 3 + 6) / 3


def test_numbers_are_kept_as_floats_and_hold_no_graph():
    recorded: Recorded = defaultdict(list)
    record(recorded, {"loss": th.tensor(2.0, requires_grad=True) * 3.0, "other": np.float32(0.5)})
    record(recorded, {"loss": th.tensor(4.0)})
    assert recorded == {"loss": [6.0, 4.0], "other": [0.5]}
    assert {type(value) for values in recorded.values() for value in values} == {float}


def test_weights_of_a_batch_are_summarized_by_their_formulas():
    weights = np.random.default_rng(0).random((8, 1))
    found = {name: value.item() for name, value in weight_metrics(th.from_numpy(weights)).items()}
    assert found["per/mean_weight"] == pytest.approx(weights.mean(), rel=1e-12)
    expected = weights.sum() ** 2 / (weights**2).sum() / 8
    assert found["per/effective_sample_size"] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [th.float16, th.bfloat16, th.float32])
def test_the_effective_sample_size_of_equal_weights_is_the_batch_in_any_precision(dtype):
    """The square of a sum of 512 ones is above the largest number of half precision."""
    model = filled_model(PERDQN, "MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(scheme="uniform"))
    sample = model.replay_buffer.sample
    model.replay_buffer.sample = lambda *args, **kwargs: (batch := sample(*args, **kwargs))._replace(
        weights=batch.weights.to(dtype)
    )
    model.train(1, batch_size=512)
    assert model.logger.name_to_value["per/effective_sample_size"] == 1.0
    assert model.logger.name_to_value["per/mean_weight"] == 1.0


class Listed(Proportional):
    """A scheme of a user's that gives a list of priorities."""

    def priority(self, abs_td_errors: np.ndarray) -> Any:
        return super().priority(abs_td_errors).tolist()


def test_the_mean_priority_of_demonstrations_does_not_depend_on_the_type_of_the_priorities():
    errors, is_demonstration = np.array([[3.0], [-1.0], [8.0]]), np.array([True, True, False])
    found = [demonstration_metrics(is_demonstration, errors, scheme) for scheme in (Listed(), Proportional())]
    assert found[0] == found[1]
    assert found[0]["demonstrations/mean_priority"] == pytest.approx(2.0, abs=1e-5)
