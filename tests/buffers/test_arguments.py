"""Buffers, schemes and the monitor refuse arguments that are not numbers, too small, or missing."""

import itertools
import re
from fractions import Fraction

import numpy as np
import pytest
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
from tests.helpers.buffers import ACTION_SPACES, OBSERVATION_SPACES, fill, make_buffer
from tests.helpers.saved import Player, make


def test_settings_that_are_not_numbers_are_refused():
    for value in ["auto", np.array([0.5])]:
        for name in ("alpha", "beta_start", "beta_end", "epsilon", "recency", "gamma"):
            with pytest.raises(ValueError, match=f"{name} must be .*, not .*{re.escape(repr(value))}"):
                make_buffer(**{name: value})


def test_settings_that_are_none_are_refused():
    for name in ("beta_start", "beta_end", "epsilon", "kappa", "recency", "gamma", "n_steps"):
        with pytest.raises(ValueError, match=f"{name} must be .*, not None"):
            make_buffer(**{name: None})


def test_scheme_settings_that_are_not_numbers_are_refused():
    for value in [[1.0], None, "1"]:
        for cls in (Proportional, RankBased, LAP, PAL):
            with pytest.raises(ValueError, match="alpha must be .*not " + re.escape(repr(value))):
                cls(alpha=value)
        for cls in (LAP, PAL):
            with pytest.raises(ValueError, match="kappa must be .*not " + re.escape(repr(value))):
                cls(kappa=value)
        with pytest.raises(ValueError, match="Unknown scheme"):
            make_buffer(scheme=["lap"])


def test_numbers_of_other_types_are_accepted():
    """NumPy scalars, 0-d arrays and fractions count as numbers."""
    for number in (np.float32(0.5), np.array(0.5), Fraction(1, 2)):
        buffer = make_buffer(alpha=number, gamma=number, scheme="lap", kappa=number)
        fill([buffer], 5)
        assert buffer.update_priorities(buffer.sample(3).indices, np.ones(3)) == 3


def test_bad_values_of_buffer_size_and_n_envs_are_refused():
    for cls, obs_space, frames in (
        (PrioritizedReplayBuffer, "image", None),
        (PrioritizedReplayBuffer, "image", 2),
        (PrioritizedDictReplayBuffer, "dict", None),
    ):
        arguments = (OBSERVATION_SPACES[obs_space], ACTION_SPACES["box"], "cpu")
        for value in (0, -5, 2.5, 1e4, None, True, [3]):
            with pytest.raises(ValueError, match=re.escape(f"buffer_size must be an integer of at least 1, not {value!r}")):
                cls(value, *arguments, frames=frames)
            with pytest.raises(ValueError, match=re.escape(f"n_envs must be an integer of at least 1, not {value!r}")):
                cls(10, *arguments, n_envs=value, frames=frames)


def test_buffer_size_below_n_envs_gives_one_row():
    """SB3 does the same, and our buffers replace SB3's."""
    assert PrioritizedReplayBuffer(3, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", 8).buffer_size == 1


def test_empty_spaces_are_refused():
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


BUFFERS = (
    PrioritizedReplayBuffer,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)


def test_a_missing_argument_is_named_in_the_error():
    given = ((), "buffer_size"), ((10,), "observation_space"), ((10, OBSERVATION_SPACES["box"]), "action_space")
    for cls, (args, missing) in itertools.product(BUFFERS, given):
        with pytest.raises(TypeError, match=missing):
            cls(*args)


@pytest.mark.parametrize("kind", ["plain", "frames", "her", "sequences"])
def test_batch_sizes_that_are_no_integers_from_one_on_are_refused(kind):
    """Nothing is drawn, so the random numbers stay."""
    buffer = make(kind)
    Player(buffer).add(30)
    np.random.seed(0)
    draws = [buffer.sample] if kind == "sequences" else [buffer.sample, buffer.sample_observations]
    for draw, batch_size in itertools.product(draws, [0, -1, np.int64(0), 2.5, 2.0, "2", True, None, [2], np.ones(2)]):
        message = f"batch_size must be an integer of at least 1, not {re.escape(repr(batch_size))}"
        with pytest.raises(ValueError, match=message):
            draw(batch_size)
    assert np.random.randint(10**6) == np.random.RandomState(0).randint(10**6)


def test_monitor_refuses_bad_settings():
    for name, value in itertools.product(("interval", "n_batches", "max_transitions"), (0, [3], "3")):
        with pytest.raises(ValueError, match=f"{name} must be .*, not .*{re.escape(str(value))}"):
            PriorityMonitor(**{name: value})
