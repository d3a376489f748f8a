"""Error messages for names from other libraries, typing errors and old files say what to write."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from sb3_per import LAP, PERDQN, PERSAC, PrioritizedReplayBuffer
from sb3_per.monitoring.plots import plot_buffer
from tests.utils import ACTION_SPACES, OBSERVATION_SPACES

# A setting that the buffer does not accept, and what the message names.
SETTINGS = [
    (dict(beta=0.4), "'beta_start'"),
    (dict(beta0=0.4), "'beta_start'"),
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
# An argument that the algorithm does not accept, and what the message names.
ARGUMENTS = [
    (dict(beta=0.4), "replay_buffer_kwargs=dict(beta_start=0.4)"),
    (dict(eps=0.1), "replay_buffer_kwargs=dict(epsilon=0.1)"),
    (dict(beta_frames=10), "replay_buffer_kwargs=dict(beta_anneal_steps=10)"),
    (dict(prioritized_replay=True), "prioritized replay is what PERDQN does"),
    (dict(prioritized_replay_alpha=0.6), "replay_buffer_kwargs=dict(alpha=0.6)"),
    (dict(prioritized_replay_beta0=0.4), "replay_buffer_kwargs=dict(beta_start=0.4)"),
    (dict(prioritized_replay_eps=1e-6), "replay_buffer_kwargs=dict(epsilon=1e-06)"),
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


def test_messages_of_an_algorithm_name_the_right_argument():
    for arguments, named in ARGUMENTS:
        assert named in message_of(lambda arguments=arguments: PERDQN("MlpPolicy", "CartPole-v1", **arguments)), arguments


def test_names_of_schemes_in_upper_case_are_accepted():
    model = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(scheme="LAP"))
    assert isinstance(model.replay_buffer.scheme, LAP)


@pytest.mark.parametrize(
    ("entry", "named"),
    [
        (dict(replay_buffer_kwargs=dict(beta0=0.4)), "'beta_start'"),
        (dict(replay_buffer_kwargs=dict(alpha="0.6")), "Pass a number, not a string"),
        (dict(replay_buffer_kwargs="dict(scheme=LAP)"), "make an object, LAP()"),
        (dict(prioritized_replay_alpha=0.6), "replay_buffer_kwargs=dict(alpha=0.6)"),
    ],
)
def test_a_hyperparameter_file_gets_the_same_messages(entry, named, tmp_path, monkeypatch):
    pytest.importorskip("rl_zoo3")
    from sb3_per.zoo import main

    monkeypatch.chdir(tmp_path)
    Path("own.yml").write_text(yaml.safe_dump({"CartPole-v1": {"n_timesteps": 10, "policy": "MlpPolicy", **entry}}))
    command = "train --algo per_dqn --env CartPole-v1 -conf own.yml --eval-freq -1"
    assert named in message_of(lambda: main(command.split()))


def test_frames_for_observations_that_are_not_stacks_give_a_warning():
    """Pendulum observes three different numbers, not three frames of one number."""
    model = PERSAC("MlpPolicy", "Pendulum-v1", learning_starts=10_000, replay_buffer_kwargs=dict(frames=3), buffer_size=2_000)
    with pytest.warns(UserWarning, match="frames=3: .* the number of frames in a stack"):
        model.learn(1_100)


def test_a_plot_takes_a_model_and_refuses_a_model_without_priorities():
    model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=10, buffer_size=100).learn(40)
    assert len(plot_buffer(model).axes) == 1
    assert "plot_buffer() takes a prioritized buffer" in message_of(lambda: plot_buffer([1, 2]))
