"""Numbers that YAML reads as text are numbers, and what is none is named in one line."""

from pathlib import Path

import pytest
import yaml

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
from sb3_per.zoo.hyperparameters import check_schedules, with_numbers
from tests.helpers.zoo import error_of, loaded, settings


def test_numbers_in_scientific_notation_are_numbers():
    entry = yaml.safe_load("{learning_rate: 1e-3, buffer_size: 1e3, tau: -.5E-2, policy: MlpPolicy, ent_coef: auto_1e-2}")
    assert entry["learning_rate"] == "1e-3"
    expected = dict(learning_rate=0.001, buffer_size=1000, tau=-0.005, policy="MlpPolicy", ent_coef="auto_1e-2")
    assert with_numbers(entry) == expected
    assert isinstance(with_numbers(entry)["buffer_size"], int)
    assert with_numbers(dict(replay_buffer_kwargs=dict(epsilon="1e-6"))) == dict(replay_buffer_kwargs=dict(epsilon=1e-6))


def test_a_learning_rate_is_a_number_or_a_linear_schedule():
    for value in (0.001, 1, "lin_1e-3", "lin_0.001"):
        check_schedules(dict(learning_rate=value))
    for value in ("fast", "lin", "lin_fast", "lin_1e-3_2"):
        with pytest.raises(ValueError, match=f"learning_rate: '{value}' is neither a number nor a linear schedule"):
            check_schedules(dict(learning_rate=value))


def test_a_file_with_such_numbers_trains(zoo):
    entry = settings(learning_rate="1e-3", n_timesteps="6e1", buffer_size="1e3", replay_buffer_kwargs=dict(epsilon="1e-6"))
    run = zoo("train", "per_sac", entry=entry)
    model = loaded("per_sac", run)
    assert (model.num_timesteps, model.lr_schedule(1.0), model.replay_buffer.scheme.epsilon) == (60, 0.001, 1e-6)


def test_a_file_that_cannot_be_used_is_one_line(zoo, capsys):
    Path("broken.yml").write_text("CartPole-v1: [")
    Path("other.yml").write_text("Acrobot-v1: {n_timesteps: 100}")
    Path("rate.yml").write_text("CartPole-v1: {n_timesteps: 100, policy: MlpPolicy, learning_rate: fast}")
    for file, said in (
        ("missing.yml", "missing.yml"),
        ("broken.yml", "broken.yml"),
        ("other.yml", "CartPole-v1"),
        ("rate.yml", "learning_rate: 'fast' is neither a number nor a linear schedule"),
    ):
        error = error_of(capsys, zoo, "train", "per_dqn", "-conf", file)
        assert f"-conf {file}: " in error and said in error
    assert not Path("logs").exists()
