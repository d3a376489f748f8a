"""A command trains small networks with one thread, unless the user has chosen a number."""

import sys
from pathlib import Path

import pytest
import torch as th
import yaml

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
from sb3_per.zoo import main
from tests.zoo.test_scripts import settings

TWO = 2
IMAGES = """
import gymnasium as gym

gym.register("Images-v0", entry_point="stable_baselines3.common.envs:FakeImageEnv")
"""


@pytest.fixture
def command(tmp_path, monkeypatch):
    """Train as a new process does: its options are those of the process, and PyTorch has two threads."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    before = th.get_num_threads()
    th.set_num_threads(TWO)
    images = settings(policy="CnnPolicy", policy_kwargs="dict()", n_timesteps=20)
    entries = {"CartPole-v1": settings(n_timesteps=60), "Images-v0": images}
    Path("own.yml").write_text(yaml.safe_dump(entries))
    Path("images.py").write_text(IMAGES)

    def run(*options: str, script: str = "train", env: str = "CartPole-v1", from_python: bool = False) -> int:
        words = [script, "--algo", "per_dqn", "--env", env, *options]
        if script == "train":
            words += ["-conf", "own.yml", "--eval-freq", "-1"]
        monkeypatch.setattr(sys, "argv", ["zoo", *words])
        main(words if from_python else None)
        return th.get_num_threads()

    yield run
    th.set_num_threads(before)


def test_a_command_trains_and_plays_with_one_thread(command):
    assert command() == 1
    th.set_num_threads(TWO)
    assert command("-n", "20", "--no-render", script="enjoy") == 1


def test_a_number_of_the_user_wins(command, monkeypatch):
    assert command("--num-threads", str(TWO)) == TWO
    assert command(from_python=True) == TWO
    Path("own_threads.py").write_text("import torch; torch.set_num_threads(3)")
    assert command("--gym-packages", "own_threads") == 3
    th.set_num_threads(TWO)
    monkeypatch.setenv("OMP_NUM_THREADS", str(TWO))
    assert command() == TWO


def test_images_keep_the_threads_of_pytorch(command):
    assert command("--gym-packages", "images", env="Images-v0") == TWO
