"""Bad settings are refused before memory is allocated; the message names the setting and its value."""

import numpy as np
import pytest
from gymnasium import spaces

from sb3_per import PrioritizedDictReplayBuffer, PrioritizedReplayBuffer, Proportional
from tests.helpers.buffers import ACTION_SPACES, OBSERVATION_SPACES, make_buffer


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
        (dict(uniform_fraction=1.0), r"uniform_fraction must be a number in \[0, 1\), not 1.0"),
        (dict(uniform_fraction=-0.1), r"-0\.1"),
        (dict(uniform_fraction=np.nan), "nan"),
        (dict(weight_normalization="sum"), "weight_normalization must be .*'mean'.* not 'sum'"),
        (dict(weight_normalization="mean", scheme="lap"), "no effect with LAP"),
        (dict(weight_normalization="none", scheme="uniform"), "no effect with Uniform"),
        (dict(actor_batch="random"), "actor_batch must be .*'weighted'.* not 'random'"),
        (dict(initial_priority="min"), "initial_priority must be .*'td_error'.* not 'min'"),
        (dict(initial_priority="mean", scheme="rank"), "no meaning with RankBased"),
        (dict(initial_priority="mean", scheme="uniform"), "no effect with Uniform"),
        (dict(initial_priority="td_error", scheme="pal"), "no effect with PAL"),
        (dict(max_priority_interval=0), "max_priority_interval must be None or an integer of at least 1, not 0"),
        (dict(max_priority_interval=250, scheme="rank"), "no effect with RankBased"),
        (dict(max_priority_interval=250, scheme="pal"), "no effect with PAL"),
        (dict(max_priority_interval=250, scheme="uniform"), "no effect with Uniform"),
        (dict(recency=0.0), r"recency must be a number in \(0, 1\], not 0.0"),
        (dict(recency=1.5), "1.5"),
        (dict(recency_min=0), "recency_min must be an integer of at least 1, not 0"),
        (dict(kappa="auto", scheme="lap"), "kappa must be a number above 0, not 'auto'"),
    ],
    ids=str,
)
def test_bad_settings_are_refused_before_allocation(kwargs, value):
    with pytest.raises(ValueError, match=value):
        make_buffer(10**12, **kwargs)


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,)), OBSERVATION_SPACES["dict"]])
def test_positional_arguments_come_in_the_order_of_sb3(space):
    cls = PrioritizedDictReplayBuffer if isinstance(space, spaces.Dict) else PrioritizedReplayBuffer
    buffer = cls(30, space, ACTION_SPACES["box"], "cpu", 3, False, False)
    assert (buffer.buffer_size, buffer.n_envs, buffer.handle_timeout_termination) == (10, 3, False)
