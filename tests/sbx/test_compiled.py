"""An update is compiled once, and data travel once each way."""

import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch as th
from stable_baselines3.common.logger import Logger

from sb3_per.sbx import jax_loop
from sb3_per.sbx.batches import StepOutput, batch_from_torch, stack
from sb3_per.sbx.jax_loop import loop_lengths
from tests.helpers.buffers import fill
from tests.helpers.sbx_models import BATCH_SIZE, leaves, make, names, shared

COMPILATIONS: list[str] = []


def _count(event: str, *args: Any, **kwargs: Any) -> None:
    if "backend_compile" in event:
        COMPILATIONS.append(event)


jax.monitoring.register_event_duration_secs_listener(_count)


def test_nothing_is_compiled_twice(monkeypatch):
    """The number of steps, the place within a policy delay and numbers such as tau may differ from call to call."""
    model = shared("td3")
    model.train(1, BATCH_SIZE)
    model.train(2, BATCH_SIZE)
    model.td_errors(model.replay_buffer.sample(BATCH_SIZE))
    n_before = len(COMPILATIONS)
    assert n_before > 0
    for gradient_steps in (1, 2, 2, 1, 1):
        model.train(gradient_steps, BATCH_SIZE)
    monkeypatch.setattr(model, "tau", 0.01)
    monkeypatch.setattr(model, "target_policy_noise", 0.3)
    model.train(1, BATCH_SIZE)
    model.td_errors(model.replay_buffer.sample(BATCH_SIZE))
    assert len(COMPILATIONS) == n_before


def test_each_length_of_a_loop_is_compiled_once(monkeypatch):
    monkeypatch.setattr(jax_loop, "LONGEST_REST", 3)  # fewer compilations
    model = shared("dqn")
    batch_size = BATCH_SIZE + 1  # no other test has compiled for it
    n_before = len(COMPILATIONS)
    for gradient_steps in reversed(range(1, 12)):
        model.train(gradient_steps, batch_size)
    assert len(COMPILATIONS) - n_before == 3 + 2  # of 1, 2 and 3 steps, and of 4 and 8
    for gradient_steps in range(1, 12):
        model.train(gradient_steps, batch_size)
    assert len(COMPILATIONS) - n_before == 3 + 2


def test_the_number_of_lengths_is_bounded():
    """Up to 32 steps are one loop. Twice as many steps add one length. Only a call of one step has a loop of one."""
    assert loop_lengths(1) == [1] and loop_lengths(20) == [20] and loop_lengths(64) == [64]
    assert loop_lengths(61) == [32, 29] and loop_lengths(33) == [16, 17] and loop_lengths(129) == [64, 32, 16, 17]
    for doublings in range(6):
        n = 32 << doublings
        splits = {i: loop_lengths(i) for i in range(1, n + 1)}
        assert all(sum(lengths) == i and (i == 1 or 1 not in lengths) for i, lengths in splits.items())
        assert len(set().union(*splits.values())) == 32 + doublings


def trip_counts(program: str) -> list[int | None]:
    """List the lengths of the loops of an optimized program, from its text; ``None``: the compiler does not know it."""
    loops = [line for line in program.splitlines() if re.search(r"[ )]while\(", line)]
    found = [re.search(r'"known_trip_count":\{"n":"(\d+)"', line) for line in loops]
    return [int(match[1]) if match else None for match in found]


def record_loops(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Return a list that gets the lengths of all loops of the programs for several steps that ``train`` runs."""
    lengths: list[int | None] = []
    cls = type(model)
    compiled_steps = cls._compiled_steps

    def run(*inputs: Any) -> Any:
        lengths.extend(trip_counts(compiled_steps.lower(cls, *inputs).compile().as_text()))
        return compiled_steps(*inputs)

    monkeypatch.setattr(model, "_compiled_steps", run)
    return lengths


@pytest.mark.parametrize(("gradient_steps", "expected"), [(1, []), (2, [2]), (3, [3]), (7, [4, 3]), (8, [8])])
def test_the_compiler_knows_the_length_of_the_loop_over_gradient_steps(gradient_steps, expected, monkeypatch):
    """On a GPU, a loop of unknown length waits for the device before each step. DQN has no other loop: no random numbers."""
    monkeypatch.setattr(jax_loop, "LONGEST_REST", 3)
    model = shared("dqn")
    lengths = record_loops(model, monkeypatch)
    model.train(gradient_steps, BATCH_SIZE)
    assert lengths == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_no_program_has_a_loop_of_unknown_length(name, monkeypatch):
    model = shared(name)
    lengths = record_loops(model, monkeypatch)
    model.train(34, BATCH_SIZE)
    assert {32, 2} <= set(lengths) and None not in lengths


@pytest.mark.parametrize(("static_argnums", "expected"), [((), [None]), ((1,), [3])])
def test_a_loop_of_unknown_length_is_recognized(static_argnums, expected):
    """Otherwise, the tests above could not fail."""

    def repeat(x: jax.Array, n: Any) -> jax.Array:
        return jax.lax.fori_loop(0, n, lambda i, x: jnp.sin(x) @ x, x)

    program = jax.jit(repeat, static_argnums=static_argnums).lower(jnp.ones((4, 4)), 3).compile()
    assert trip_counts(program.as_text()) == expected


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
    arrays = jax.tree.leaves(stack([batch_from_torch(batch, 0.99, model.observation_space, True)] * 4))
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
