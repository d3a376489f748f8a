"""Forms of settings and TD errors that are accepted, and errors for those that are not, which change nothing."""

import pickle
import re
from fractions import Fraction

import numpy as np
import pytest
import torch as th
from gymnasium import spaces

from sb3_per import (
    LAP,
    PAL,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    PriorityMonitor,
    Proportional,
    RankBased,
)
from tests.utils import ACTION_SPACES, OBSERVATION_SPACES, fill, make_buffer

TD_ERRORS = np.array([[0.5, -1.5], [-2.0, 2.0], [0.0, 1.0]])


@pytest.mark.parametrize(
    "td_errors",
    [
        TD_ERRORS,
        -TD_ERRORS,
        np.abs(TD_ERRORS).astype(np.float32),
        th.tensor(TD_ERRORS),
        th.tensor(TD_ERRORS, dtype=th.float32, requires_grad=True),
        th.tensor(TD_ERRORS, dtype=th.bfloat16),
        TD_ERRORS.tolist(),
        np.abs(TD_ERRORS).mean(axis=1),
        np.abs(TD_ERRORS).mean(axis=1, keepdims=True),
    ],
)
def test_forms_of_td_errors(td_errors):
    buffer = make_buffer(3)
    fill([buffer], 3)
    if isinstance(td_errors, np.ndarray):
        td_errors.setflags(write=False)
    assert buffer.update_priorities(np.arange(3, dtype=np.int32), td_errors) == 3
    np.testing.assert_allclose(buffer.priorities[:, 0], (np.array([1.0, 2.0, 0.5]) + 1e-6) ** 0.6, rtol=1e-6)


@pytest.mark.parametrize(
    "reduction, expected", [("mean", [1.0, 2.0, 0.5]), ("max", [1.5, 2.0, 1.0]), ("min", [0.5, 2.0, 0.0])]
)
def test_td_error_reduction(reduction, expected):
    buffer = make_buffer(3, td_error_reduction=reduction, alpha=1.0, epsilon=0.25)
    fill([buffer], 3)
    buffer.update_priorities(np.arange(3), TD_ERRORS)
    np.testing.assert_allclose(buffer.priorities[:, 0], np.array(expected) + 0.25)


@pytest.mark.parametrize(
    "kwargs, value",
    [
        (dict(alpha=-0.1), "-0.1"),
        (dict(alpha=np.nan), "nan"),
        (dict(beta_start=1.1), "1.1"),
        (dict(beta_start=-0.2), "-0.2"),
        (dict(beta_end=1.5), "1.5"),
        (dict(beta_start=0.8, beta_end=0.6), "0.6"),
        (dict(beta_anneal_steps=0), "0"),
        (dict(beta_anneal_steps=1.5), "1.5"),
        (dict(epsilon=0.0), "0.0"),
        (dict(epsilon=-1e-6), "-1e-06"),
        (dict(scheme="propotional"), "propotional"),
        (dict(scheme=Proportional(), alpha=0.3), "0.3"),
        (dict(scheme=Proportional(), epsilon=0.3), "0.3"),
        (dict(td_error_reduction="median"), "median"),
        (dict(n_steps=0), "0"),
        (dict(n_steps=2.0), "2.0"),
        (dict(gamma=1.01), "1.01"),
    ],
)
@pytest.mark.parametrize("obs_space", ["box", "dict"])
def test_bad_settings(kwargs, value, obs_space):
    with pytest.raises(ValueError, match=value):
        make_buffer(obs_space=obs_space, **kwargs)


def test_unsupported_combination():
    with pytest.raises(NotImplementedError, match=r"optimize_memory_usage.*Dict"):
        make_buffer(obs_space="dict", optimize_memory_usage=True, handle_timeout_termination=False)


@pytest.mark.parametrize("beta_anneal_steps", [None, 100])
@pytest.mark.parametrize(
    "call, error, value",
    [
        (lambda b: b.sample(0), ValueError, "0"),
        (lambda b: b.sample(-4), ValueError, "-4"),
        (lambda b: b.update_priorities([0, 1], [1.0]), ValueError, r"\(1,\)"),
        (lambda b: b.update_priorities([0, 1], np.ones((1, 2))), ValueError, r"\(1, 2\)"),
        (lambda b: b.update_priorities([0, 1], np.ones((2, 2, 1))), ValueError, r"\(2, 2, 1\)"),
        (lambda b: b.update_priorities([0, 1], np.ones((2, 0))), ValueError, r"\(2, 0\)"),
        (lambda b: b.update_priorities([0, 1], 1.0), ValueError, r"\(\)"),
        (lambda b: b.update_priorities([0, 1], [1.0, np.nan]), ValueError, "nan"),
        (lambda b: b.update_priorities([0, 1], [[1.0, -np.inf], [0.0, 0.0]]), ValueError, "-inf"),
        (lambda b: b.update_priorities([0, 1], th.tensor([np.inf, 1.0])), ValueError, "inf"),
        (lambda b: b.update_priorities([4, 14], [9.0, 9.0]), IndexError, "14"),
        (lambda b: b.update_priorities([4, -1], [9.0, 9.0]), IndexError, "-1"),
        (lambda b: b.update_priorities([4.0, 5.0], [9.0, 9.0]), IndexError, "float64"),
        (lambda b: b.update_priorities([[4, 5]], [[9.0, 9.0]]), ValueError, r"\(1, 2\)"),
    ],
)
def test_errors_change_nothing(call, error, value, beta_anneal_steps):
    buffer = make_buffer(5, n_envs=2, beta_anneal_steps=beta_anneal_steps)
    fill([buffer], 7)
    before = pickle.dumps(buffer)
    random_state = np.random.get_state()[1].copy()
    with pytest.raises(error, match=value):
        call(buffer)
    assert pickle.dumps(buffer) == before
    np.testing.assert_array_equal(np.random.get_state()[1], random_state)


@pytest.mark.parametrize("obs_space", ["box", "dict"])
def test_sampling_from_an_empty_buffer(obs_space):
    buffer = make_buffer(5, 2, obs_space, beta_anneal_steps=7)
    before = pickle.dumps(buffer)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(3)
    assert pickle.dumps(buffer) == before


def test_failed_add_changes_no_priority():
    buffer = make_buffer(4)
    fill([buffer], 6)
    before = (buffer.priorities, buffer.pos, buffer._next_id)
    with pytest.raises(ValueError):
        buffer.add(np.zeros((1, 3)), np.zeros((1, 3)), np.zeros((1, 2)), np.zeros(5), np.zeros(1), [{}])
    np.testing.assert_array_equal(buffer.priorities, before[0])
    assert (buffer.pos, buffer._next_id) == before[1:]


@pytest.mark.parametrize("value", ["auto", [0.6], (0.5, 0.6), np.array([0.5]), {}], ids=repr)
@pytest.mark.parametrize("name", ["alpha", "beta_start", "beta_end", "epsilon", "uniform_fraction", "recency", "gamma"])
def test_settings_that_are_no_numbers(name, value):
    with pytest.raises(ValueError, match=f"{name} must be a number, not .*{re.escape(repr(value))}"):
        make_buffer(**{name: value})


@pytest.mark.parametrize(
    "name", ["beta_start", "beta_end", "epsilon", "kappa", "uniform_fraction", "recency", "gamma", "n_steps"]
)
def test_settings_that_are_none(name):
    with pytest.raises(ValueError, match=f"{name} must be .*, not None"):
        make_buffer(**{name: None})


@pytest.mark.parametrize("value", [[1.0], None, "1", np.ones(2), {}], ids=repr)
def test_schemes_that_are_given_no_numbers(value):
    for cls in (Proportional, RankBased, LAP, PAL):
        with pytest.raises(ValueError, match=re.escape(f"alpha must be a number, not {value!r}")):
            cls(alpha=value)
    for cls in (LAP, PAL):
        with pytest.raises(ValueError, match=re.escape(f"kappa must be a number, not {value!r}")):
            cls(kappa=value)
    with pytest.raises(ValueError, match="Unknown scheme"):
        make_buffer(scheme=["lap"])


def test_numbers_of_other_types():
    """Of NumPy, arrays without an axis, fractions."""
    for number in (np.float32(0.5), np.array(0.5), Fraction(1, 2)):
        buffer = make_buffer(alpha=number, gamma=number, scheme="lap", kappa=number)
        fill([buffer], 5)
        assert buffer.update_priorities(buffer.sample(3).indices, np.ones(3)) == 3


KINDS = {
    "plain": lambda **kwargs: make_buffer(**kwargs),
    "dict": lambda **kwargs: make_buffer(obs_space="dict", **kwargs),
    "frames": lambda **kwargs: make_buffer(obs_space="image", frames=2, **kwargs),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", [0, -5, 2.5, 1e4, None, True, [3]], ids=repr)
def test_sizes_that_no_transition_fits_in(kind, value):
    space = KINDS[kind]().observation_space
    cls, frames = type(KINDS[kind]()), KINDS[kind]().frames
    arguments = (space, ACTION_SPACES["box"], "cpu")
    for call in (
        lambda: cls(value, *arguments, frames=frames),
        lambda: cls(buffer_size=value, observation_space=space, action_space=arguments[1], frames=frames),
    ):
        with pytest.raises(ValueError, match=re.escape(f"buffer_size must be an integer of at least 1, not {value!r}")):
            call()
    for call in (
        lambda: cls(10, *arguments, value, frames=frames),
        lambda: cls(10, *arguments, n_envs=value, frames=frames),
    ):
        with pytest.raises(ValueError, match=re.escape(f"n_envs must be an integer of at least 1, not {value!r}")):
            call()


def test_fewer_rows_than_environments():
    """SB3 gives them one, and so do buffers that take the place of its own."""
    assert PrioritizedReplayBuffer(3, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", 8).buffer_size == 1


def test_spaces_without_a_value():
    empty, full = spaces.Box(-1, 1, (0,)), spaces.Box(-1, 1, (2,))
    for space, action_space, match in (
        (empty, full, r"observation_space .* shape is \(0,\)"),
        (spaces.Box(0, 1, (4, 0)), full, r"observation_space .* shape is \(4, 0\)"),
        (full, empty, r"action_space .* shape is \(0,\)"),
        (spaces.Dict({"a": full, "b": empty}), full, r"observation_space\['b'\] .* shape is \(0,\)"),
    ):
        cls = PrioritizedDictReplayBuffer if isinstance(space, spaces.Dict) else PrioritizedReplayBuffer
        with pytest.raises(ValueError, match=match):
            cls(10, space, action_space, "cpu")


@pytest.mark.parametrize(
    "cls",
    [PrioritizedReplayBuffer, PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer, PrioritizedSequenceReplayBuffer],
)
def test_arguments_that_are_missing(cls):
    for args, missing in ((), "buffer_size"), ((10,), "observation_space"), ((10, OBSERVATION_SPACES["box"]), "action_space"):
        with pytest.raises(TypeError, match=f"{cls.__name__}.*{missing}"):
            cls(*args)


@pytest.mark.parametrize("obs_space", ["box", "dict"])
@pytest.mark.parametrize("batch_size", [0, -1])
def test_no_observations(obs_space, batch_size):
    buffer = make_buffer(5, obs_space=obs_space)
    fill([buffer], 3)
    with pytest.raises(ValueError, match=f"batch_size must be at least 1, not {batch_size}"):
        buffer.sample_observations(batch_size)


@pytest.mark.parametrize("name", ["interval", "n_batches", "max_transitions"])
def test_a_monitor_of_nothing(name):
    for value in (0, [3], "3"):
        with pytest.raises(ValueError, match=f"{name} must be .*, not .*{re.escape(str(value))}"):
            PriorityMonitor(**{name: value})
