"""Bad settings are refused before memory is allocated; the message names the setting and its value."""

import numpy as np
import pytest

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer, Proportional
from tests.helpers.buffers import ACTION_SPACES, OBSERVATION_SPACES, fill, filled_buffer, make_buffer


def test_bad_settings_are_refused_before_allocation():
    for kwargs, value in [
        (dict(alpha=-0.1), "-0.1"),
        (dict(alpha=np.nan), "nan"),
        (dict(beta_start=1.1), "1.1"),
        (dict(beta_start=0.8, beta_end=0.6), "0.6"),
        (dict(beta=1.1), r"beta must be .*\[0, 1\], not 1.1"),
        (dict(beta=None), "beta must be .*, not None"),
        (dict(beta=0, beta_start=0), "beta=0 sets beta_start and beta_end: leave out beta_start=0"),
        (dict(beta=0.5, beta_end=1.0), "beta=0.5 sets beta_start and beta_end: leave out beta_end=1.0"),
        (dict(beta_anneal_steps=0), "0"),
        (dict(epsilon=0.0), "0.0"),
        (dict(scheme="propotional"), "propotional"),
        (dict(scheme=Proportional(), alpha=0.3), "0.3"),
        (dict(td_error_reduction="median"), "median"),
        (dict(n_steps=0), "0"),
        (dict(gamma=1.01), "1.01"),
        (dict(actor_batch="random"), "actor_batch must be .*'uniform'.* not 'random'"),
        (dict(initial_priority="min"), "initial_priority must be .*'td_error'.* not 'min'"),
        (dict(initial_priority="td_error", scheme="pal"), "no effect with PAL"),
        (dict(recency=0.0), r"recency must be a number in \(0, 1\], not 0.0"),
        (dict(recency_min=0), "recency_min must be an integer of at least 1, not 0"),
        (dict(kappa="auto", scheme="lap"), "kappa must be a number above 0, not 'auto'"),
    ]:
        with pytest.raises(ValueError, match=value):
            make_buffer(10**12, **kwargs)


def test_beta_sets_its_start_and_its_end():
    for kind in ("plain", "dict", "her", "memory"):
        for beta in (0, 0.3, 1):
            np.random.seed(0)
            one, both = (filled_buffer(kind, **kwargs) for kwargs in (dict(beta=beta), dict(beta_start=beta, beta_end=beta)))
            assert one.settings == both.settings
            for progress_remaining in (1.0, 0.5, 0.0):
                one.update_beta(progress_remaining)
                assert one.beta == beta
                np.random.seed(1)
                weights = one.sample(64).weights
                np.random.seed(1)
                assert (both.sample(64).weights == weights).all()
                assert (weights == 1.0).all() == (beta == 0)


def test_beta_replaces_start_and_end_of_another_buffer():
    buffer = make_buffer(beta_start=0.2, beta_end=0.9)
    fill([buffer], 5)
    changed = PrioritizedReplayBuffer.from_replay_buffer(buffer, beta=0)
    assert (changed.settings.beta_start, changed.settings.beta_end) == (0, 0)
    stock = changed.to_replay_buffer()
    assert PrioritizedReplayBuffer.from_replay_buffer(stock, beta=0.7).beta == 0.7
    with pytest.raises(ValueError, match=r"leave out beta_end=0\.5"):
        PrioritizedReplayBuffer.from_replay_buffer(stock, beta=0.7, beta_end=0.5)


def test_positional_arguments_come_in_the_order_of_sb3():
    for cls, obs_space in ((PrioritizedReplayBuffer, "box"), (PrioritizedDictReplayBuffer, "dict")):
        buffer = cls(30, OBSERVATION_SPACES[obs_space], ACTION_SPACES["box"], "cpu", 3, False, False)
        assert (buffer.buffer_size, buffer.n_envs, buffer.handle_timeout_termination) == (10, 3, False)


def test_names_that_came_to_nothing_are_unknown():
    """What was tried, helped nowhere and was taken away gets the message of any other name that does not exist."""
    for name in ("uniform_fraction", "weight_normalization", "max_priority_interval", "demonstration_bonus"):
        with pytest.raises(TypeError, match=f"PrioritizedReplayBuffer has no setting '{name}'"):
            make_buffer(**{name: 1})
    for name, value in (("initial_priority", "mean"), ("actor_batch", "weighted")):
        with pytest.raises(ValueError, match=f"{name} must be .*, not '{value}'"):
            make_buffer(**{name: value})
    buffer = make_buffer()
    fill([buffer], 3)
    assert not hasattr(buffer.sample(2), "relative_probabilities")
