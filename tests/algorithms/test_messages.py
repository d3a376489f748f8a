"""Error messages for names from other libraries, typing errors and old files say what to write."""

import re
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize

import sb3_per
from sb3_per import (
    LAP,
    PERDQN,
    PERSAC,
    PERTD3,
    IgnoredSettingWarning,
    PERRecurrentDQN,
    PERRecurrentSAC,
    PrioritizedReplayBuffer,
)
from sb3_per.algorithms.recurrent.mixin import RecurrentMixin
from tests.helpers.buffers import ACTION_SPACES, OBSERVATION_SPACES
from tests.helpers.models import EVERY

# A setting that the buffer does not accept, and what the message names.
SETTINGS = [
    (dict(beta0=0.4), "'beta_start', or 'beta'"),
    (dict(eps=0.1), "'epsilon'"),
    (dict(beta_frames=10), "'beta_anneal_steps'"),
    (dict(beta_steps=10), "'beta_anneal_steps'"),
    (dict(prioritized_replay=True), "PERDQN"),
    (dict(prioritized_replay_alpha=0.6), "'alpha'"),
    (dict(prioritized_replay_beta0=0.4), "'beta_start'"),
    (dict(prioritized_replay_eps=1e-6), "'epsilon'"),
    (dict(double_q=True), "an argument of the algorithm: PERDQN(..., double_q=True)"),
    (dict(alpha="0.6"), "Pass a number, not a string"),
    (dict(alpha=[0.6]), "alpha must be None or a number of at least 0, not [0.6] (list)"),
    (dict(alpha="auto"), "alpha must be None or a number of at least 0, not 'auto'"),
    (dict(scheme="per"), "'proportional'"),
    (dict(scheme="prioritized"), "'proportional'"),
    (dict(scheme=LAP), "make an object, LAP()"),
]


def message_of(make: Any) -> str:
    with pytest.raises((TypeError, ValueError)) as refused:
        make()
    return str(refused.value)


def test_messages_of_a_buffer_name_the_right_setting():
    spaces_ = OBSERVATION_SPACES["box"], ACTION_SPACES["box"]
    for settings, named in SETTINGS:
        alone = message_of(lambda settings=settings: PrioritizedReplayBuffer(10, *spaces_, "cpu", **settings))
        of_algorithm = message_of(lambda settings=settings: PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=settings))
        assert named in alone and named in of_algorithm, settings
        assert "YAML" not in alone, settings


def test_names_of_schemes_in_upper_case_are_accepted():
    model = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(scheme="LAP"))
    assert isinstance(model.replay_buffer.scheme, LAP)


def test_a_hyperparameter_file_gets_the_same_messages(tmp_path, monkeypatch, capsys):
    pytest.importorskip("rl_zoo3")
    from sb3_per.zoo import main

    monkeypatch.chdir(tmp_path)
    command = "train --algo per_dqn --env CartPole-v1 -conf own.yml --eval-freq -1"
    for entry, named in (
        (dict(replay_buffer_kwargs=dict(beta0=0.4)), "'beta_start'"),
        (dict(replay_buffer_kwargs=dict(alpha="0.6")), "Pass a number, not a string"),
        (dict(prioritized_replay_alpha=0.6), "replay_buffer_kwargs=dict(alpha=0.6)"),
        (dict(prioritized_replay_beta0=0.4), "replay_buffer_kwargs=dict(beta_start=0.4)"),
        (dict(prioritized_replay_eps=0.1), "replay_buffer_kwargs=dict(epsilon=0.1)"),
        (dict(alpha=0.7), "replay_buffer_kwargs=dict(alpha=0.7)"),
        (dict(prioritized_replay=True), "prioritized replay is what PERDQN does"),
    ):
        Path("own.yml").write_text(yaml.safe_dump({"CartPole-v1": {"n_timesteps": 10, "policy": "MlpPolicy", **entry}}))
        with pytest.raises(SystemExit):
            main(command.split())
        assert named in capsys.readouterr().err


def test_frames_for_observations_that_are_not_stacks_give_a_warning():
    """Pendulum observes three different numbers, not three frames of one number."""
    model = PERSAC("MlpPolicy", "Pendulum-v1", learning_starts=10_000, replay_buffer_kwargs=dict(frames=3), buffer_size=2_000)
    with pytest.warns(UserWarning, match="frames=3: .* the number of frames in a stack"):
        model.learn(1_100)


def test_settings_without_effect_in_learn_warn():
    for settings, message in (
        (dict(initial_priority="td_error"), r"initial_priority='td_error' has no effect in learn\(\)"),
        (dict(recency=0.99), "recency=0.99 has no effect: .* recency_min=5000 .* holds 50"),
    ):
        model = PERDQN("MlpPolicy", "CartPole-v1", buffer_size=50, replay_buffer_kwargs=settings)
        with pytest.warns(IgnoredSettingWarning, match=message):
            model.learn(1)


def test_settings_with_effect_in_learn_do_not_warn(recwarn):
    class Informed(PrioritizedReplayBuffer):
        def add(self, *args: Any, **kwargs: Any) -> None:
            super().add(*args, **kwargs, td_errors=np.ones(1))

    settings = dict(initial_priority="td_error", recency=0.99, recency_min=49)
    PERDQN("MlpPolicy", "CartPole-v1", buffer_size=50, replay_buffer_class=Informed, replay_buffer_kwargs=settings).learn(1)
    assert not any(isinstance(each.message, IgnoredSettingWarning) for each in recwarn)


def test_a_class_for_other_actions_is_named():
    """Whether the environment is an object or a name, and in a class of the user's too."""

    class Own(PERSAC):
        pass

    for cls, env, named in (
        (PERSAC, "CartPole-v1", "PERSAC is for continuous actions, and this environment has Discrete(2): take PERDQN"),
        (Own, gym.make("CartPole-v1"), "Own is for continuous actions, and this environment has Discrete(2): take PERDQN"),
        (PERTD3, make_vec_env("CartPole-v1"), "PERTD3 is for continuous actions"),
        (PERDQN, "Pendulum-v1", "take PERSAC"),
        (PERRecurrentSAC, "CartPole-v1", "take PERRecurrentDQN"),
        (PERRecurrentDQN, "Pendulum-v1", "take PERRecurrentSAC"),
    ):
        with pytest.raises(AssertionError, match=re.escape(named)):
            cls("MlpLstmPolicy" if "Recurrent" in named else "MlpPolicy", env)


@pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)
def test_every_algorithm_names_a_class_for_the_other_actions(cls):
    env, fits = ("Pendulum-v1", "continuous") if cls.takes_actions == "discrete" else ("CartPole-v1", "discrete")
    other = getattr(sb3_per, cls.class_for_other_actions)
    assert other.takes_actions == fits and issubclass(other, RecurrentMixin) == issubclass(cls, RecurrentMixin)
    with pytest.raises(
        AssertionError, match=f"^{cls.__name__} is for {cls.takes_actions} actions, .*: take {other.__name__}$"
    ):
        cls("MlpLstmPolicy" if issubclass(cls, RecurrentMixin) else "MlpPolicy", env)


def test_double_q_is_a_flag():
    """A text that says False would be true."""
    with pytest.raises(ValueError, match=r"double_q must be .*'False'"):
        PERDQN("MlpPolicy", "CartPole-v1", double_q="False", buffer_size=50)


@pytest.mark.filterwarnings("ignore:The environment is already wrapped")
def test_observations_of_another_shape_than_those_of_the_model_are_refused_at_the_first_step():
    """SB3 stores observations from before normalization. A wrapper outside of VecNormalize may change their shape."""
    model = PERDQN("MlpPolicy", VecFrameStack(VecNormalize(make_vec_env("CartPole-v1")), 4), buffer_size=20)
    with pytest.raises(ValueError, match="shape"):
        model.learn(10)
    assert model.replay_buffer.size() == 0
    make = partial(make_vec_env, "CartPole-v1")
    for env in (VecNormalize(VecFrameStack(make(), 4)), VecMonitor(VecNormalize(make()))):
        PERDQN("MlpPolicy", env, buffer_size=20, learning_starts=5).learn(10)
