"""An update is compiled once, and data travel once each way."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.logger import Logger

from sb3_per.sbx.batches import StepOutput, batch_from_torch, stack
from tests.helpers.buffers import fill
from tests.helpers.sbx_models import BATCH_SIZE, leaves, make, shared

COMPILATIONS: list[str] = []


def _count(event: str, *args: Any, **kwargs: Any) -> None:
    if "backend_compile" in event:
        COMPILATIONS.append(event)


jax.monitoring.register_event_duration_secs_listener(_count)


def test_nothing_is_compiled_twice(monkeypatch):
    """The number of steps, the place within a policy delay and numbers such as tau may differ from call to call."""
    model = shared("td3")
    model.train(1, BATCH_SIZE)
    model.train(4, BATCH_SIZE)
    model.td_errors(model.replay_buffer.sample(BATCH_SIZE))
    n_before = len(COMPILATIONS)
    assert n_before > 0
    for gradient_steps in (1, 3, 4, 1, 1):
        model.train(gradient_steps, BATCH_SIZE)
    monkeypatch.setattr(model, "tau", 0.01)
    monkeypatch.setattr(model, "target_policy_noise", 0.3)
    model.train(1, BATCH_SIZE)
    model.td_errors(model.replay_buffer.sample(BATCH_SIZE))
    assert len(COMPILATIONS) == n_before


@pytest.mark.slow
def test_schedules_and_resets_compile_nothing_again():
    model = make("sac", learning_rate=lambda progress: 1e-3 * progress, param_resets=[10, 20])
    fill([model.replay_buffer], 30)
    model.set_logger(Logger(None, []))
    before = leaves(model)
    model.train(1, BATCH_SIZE)
    n_before = len(COMPILATIONS)
    model._current_progress_remaining = 0.5
    model.train(1, BATCH_SIZE)
    assert model.logger.name_to_value["train/learning_rate_actor"] == pytest.approx(5e-4)
    assert len(COMPILATIONS) == n_before
    model.num_timesteps = 10
    trained = leaves(model)
    model._reset_networks_if_due()
    n_before = len(COMPILATIONS)  # SBX makes new networks
    assert any((one != other).any() for one, other in zip(leaves(model), trained, strict=True))
    model.train(1, BATCH_SIZE)
    assert len(COMPILATIONS) == n_before and model.reset_idx == 1
    assert [leaf.shape for leaf in leaves(model)] == [leaf.shape for leaf in before]


def test_a_changed_setting_of_the_scheme_changes_the_update(monkeypatch):
    """The compiler takes it for a constant."""
    model = make("dqn", replay_buffer_kwargs=dict(scheme="lap"))
    fill([model.replay_buffer], 30)
    model.set_logger(Logger(None, []))
    batch = model.replay_buffer.sample(BATCH_SIZE)
    monkeypatch.setattr(model.replay_buffer, "sample", lambda batch_size, env: batch)
    scheme = model.replay_buffer.scheme
    for kappa in (1.0, 1e-3, 1.0):
        scheme.kappa = kappa
        td_errors = th.from_numpy(model.td_errors(batch).copy())
        model.train(1, BATCH_SIZE)
        expected = scheme.loss(td_errors, td_errors, batch.weights)
        assert model.logger.name_to_value["train/critic_loss"] == pytest.approx(float(expected), rel=1e-4)


def test_data_travel_in_few_arrays():
    """Each array takes a transfer: one for rewards, ends, discounts and weights, and one back for all that is logged."""
    model = shared("td3")
    batch = model.replay_buffer.sample(BATCH_SIZE)
    arrays = jax.tree.leaves(stack([batch_from_torch(batch, 0.99, model.observation_space, True)] * 3, 4))
    assert [array.shape[0] for array in arrays] == [4] * 5
    assert {array.dtype for array in arrays} == {np.dtype(np.float32), np.dtype(bool)}
    metrics = {"loss": np.float32(2.0), "mean": np.float32(3.0)}
    logged = StepOutput.pack(jnp.ones((BATCH_SIZE, 2)), metrics, {"of actor": np.float32(4.0)})
    (row,) = jax.tree.leaves(logged)
    for updates_actor in (False, True):
        td_errors, found = logged.unpack(np.asarray(row), updates_actor)
        assert td_errors.shape == (BATCH_SIZE, 2) and (td_errors == 1).all()
        assert found == (metrics | {"of actor": 4.0} if updates_actor else metrics)


def test_without_sbx_the_import_names_the_command_that_installs_it(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("sb3_per.sbx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sbx", None)
    with pytest.raises(ImportError, match=r'sb3_per\.sbx needs sbx: pip install "sbx-rl", or .*"\.\[sbx\]"'):
        import sb3_per.sbx  # noqa: F401
