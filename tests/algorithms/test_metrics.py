"""What a call of ``train`` keeps for the log does not grow with its gradient steps."""

import gc
from typing import Any

import numpy as np
import pytest
import torch as th

from sb3_per import PERDQN, Proportional
from sb3_per.algorithms.metrics import MeanMetrics, demonstration_metrics
from tests.helpers.algorithms import filled_model


class CountsTensors(PERDQN):
    """Count the tensors that are alive at two steps of a call of `train`."""

    def _update(self, batch: Any, gradient_step: int) -> Any:
        if gradient_step in (70, 198):  # as many are waiting to be read
            gc.collect()  # what other tests have left
            self.counts = [*getattr(self, "counts", []), sum(issubclass(type(each), th.Tensor) for each in gc.get_objects())]
        return super()._update(batch, gradient_step)


def test_a_long_call_of_train_holds_no_more_tensors_than_a_short_one():
    model = filled_model(CountsTensors, "MlpPolicy", "CartPole-v1")
    model.train(199, batch_size=8)
    before, after = model.counts
    assert abs(after - before) < 100  # two or more for each of 128 steps, if they were kept


def test_sums_give_the_means_of_lists():
    n_steps, rng, metrics = 150, np.random.default_rng(0), MeanMetrics()
    assert metrics.means() == {}
    weights, losses, rare = rng.random((8, n_steps), np.float32), rng.random(n_steps, np.float32), []
    for step in range(n_steps):
        values = {"loss": th.tensor(losses[step])}
        if step % 3 == 0:
            values["rare"] = np.float64(step)
            rare.append(float(step))
        metrics.add(values, th.from_numpy(weights[:, [step]]))
    means = metrics.means()
    assert means["train/loss"] == sum(losses.tolist()) / n_steps
    assert means["train/rare"] == sum(rare) / len(rare)
    of_batches = weights.astype(np.float64)
    effective_sizes = of_batches.sum(axis=0) ** 2 / (of_batches**2).sum(axis=0)
    assert means["per/mean_weight"] == pytest.approx(of_batches.mean(), rel=1e-12)
    assert means["per/effective_sample_size"] == pytest.approx(effective_sizes.mean() / 8, rel=1e-12)
    assert metrics.means() == means  # reading changes nothing


@pytest.mark.parametrize("weight, dtype", [(1.0, th.float16), (1.0, th.bfloat16), (1e-25, th.float32), (1e25, th.float32)])
def test_the_effective_sample_size_of_equal_weights_is_the_batch_in_any_precision(weight, dtype):
    metrics = MeanMetrics()
    for _ in range(2):
        metrics.add({}, th.full((512, 1), weight, dtype=dtype))
    means = metrics.means()
    assert means["per/effective_sample_size"] == pytest.approx(1.0)
    assert means["per/mean_weight"] == pytest.approx(weight, rel=1e-3)


class Listed(Proportional):
    """A scheme of a user's that gives a list of priorities."""

    def priority(self, abs_td_errors: np.ndarray) -> Any:
        return super().priority(abs_td_errors).tolist()


def test_the_mean_priority_of_demonstrations_does_not_depend_on_the_type_of_the_priorities():
    errors, is_demonstration = np.array([[3.0], [-1.0], [8.0]]), np.array([True, True, False])
    found = [demonstration_metrics(is_demonstration, errors, scheme) for scheme in (Listed(), Proportional())]
    assert found[0] == found[1]
    assert found[0]["demonstrations/mean_priority"] == pytest.approx(2.0, abs=1e-5)
