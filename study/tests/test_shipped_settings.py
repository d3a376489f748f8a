"""The recurrent entries of the shipped hyperparameter files are the settings that the study measured."""

import pytest
import yaml
from study.suites import SUITES

from sb3_per.zoo import config_path


@pytest.mark.parametrize(
    ("algo", "name", "suite_name", "arm"),
    [
        ("per_dqn_lstm", "CartPoleNoVel-v1", "memory-cartpole", "PERRecurrentDQN"),
        ("per_sac_lstm", "PendulumNoVel-v1", "memory-pendulum", "PERRecurrentSAC"),
    ],
)
def test_recurrent_entries_have_the_measured_settings(algo, name, suite_name, arm):
    suite = SUITES[suite_name]
    entry = yaml.safe_load(config_path(algo).read_text())[name]
    expected = dict(suite.variants[arm].settings)
    assert (suite.environments, entry.pop("n_timesteps"), entry.pop("policy")) == ((name,), suite.steps, "MlpLstmPolicy")
    assert entry.pop("n_envs", None) == suite.variants[arm].n_envs
    assert eval(entry.pop("policy_kwargs")) == expected.pop("policy_kwargs")
    entry.pop("replay_buffer_kwargs", None)  # the defaults, see tests/zoo/test_hyperparameter_files.py
    assert entry == expected
