"""Short runs of RL Zoo, and what they leave."""

from pathlib import Path
from typing import Any

import pytest

from sb3_per import PrioritizedReplayBuffer
from sb3_per.zoo import ALGORITHMS, class_of

DISCRETE = [algo for algo in ALGORITHMS if not class_of(algo).has_actor]
RECURRENT = ("per_dqn_lstm", "per_sac_lstm")


def settings(**kwargs: Any) -> dict[str, Any]:
    """Make an entry of a hyperparameter file for a run of a second."""
    return {
        "n_timesteps": 300,
        "policy": "MlpPolicy",
        "learning_starts": 50,
        "batch_size": 16,
        "buffer_size": 1000,
        "policy_kwargs": "dict(net_arch=[16])",
        "replay_buffer_kwargs": "dict(alpha=0.5, beta_start=0.3)",
        **kwargs,
    }


def settings_of(algo: str, **kwargs: Any) -> dict[str, Any]:
    """Make an entry for any algorithm, also a recurrent one."""
    if algo not in RECURRENT:
        return settings(**kwargs)
    networks = "dict(net_arch=[16], lstm_hidden_size=8)"
    recurrent = dict(policy="MlpLstmPolicy", policy_kwargs=networks, sequence_length=4, burn_in=2, train_freq=4)
    return settings(**{**recurrent, **kwargs})


def env_of(algo: str) -> str:
    return "CartPole-v1" if algo in DISCRETE else "Pendulum-v1"


def loaded(algo: str, run: Path, **kwargs: Any) -> Any:
    return class_of(algo).load(run / f"{env_of(algo)}.zip", device="cpu", **kwargs)


def saved_buffer(algo: str, run: Path) -> PrioritizedReplayBuffer:
    """Load the buffer that a run has saved into a new model."""
    model = loaded(algo, run)
    (path,) = run.glob("*.buffer")
    model.load_replay_buffer(path)
    return model.replay_buffer


def error_of(capsys: Any, zoo: Any, *arguments: str, **options: Any) -> str:
    """Run a command that exits with status 2, and return the line that it writes to stderr."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        zoo(*arguments, **options)
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line
