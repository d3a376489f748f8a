"""The examples run, in a short form."""

import subprocess
import sys
from pathlib import Path

import pytest
from stable_baselines3 import DQN, SAC

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("algo, env, stock", [("per_sac", "Pendulum-v1", SAC), ("per_dqn", "CartPole-v1", DQN)])
def test_train(algo, env, stock, tmp_path):
    """What `make train` runs: evaluated before and after, saved, drawn, and said where."""
    command = [sys.executable, EXAMPLES / "train.py", "--algo", algo, "--env", env, "--steps", "400", "--episodes", "2"]
    done = subprocess.run([*command, "--out", tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / f"{algo}_{env}"
    for name in ("model.zip", "monitor.csv", "learning_curve.png"):
        assert str(folder / name) in done.stdout
        assert (folder / name).stat().st_size > 0
    assert (folder / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    for label in ("before:", "after:"):
        assert label in done.stdout
    stock.load(folder / "model.zip")


@pytest.mark.parametrize("script, key", [("own_scheme.py", "critic_loss"), ("own_algorithm.py", "loss")])
def test_own(script, key):
    """A user's own scheme and a user's own algorithm train, and log like all others."""
    done = subprocess.run([sys.executable, EXAMPLES / script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in (key, "max_priority", "effective_sample_size"):
        assert f" {name} " in done.stdout
    source = (EXAMPLES / script).read_text()
    class_lines = source[source.index("\nclass ") :].split("\n\n\nmodel")[0].strip().splitlines()
    assert len(class_lines) < 30
