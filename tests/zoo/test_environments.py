"""Commands find environments that a module registers, and say in one line what is missing."""

import importlib
import sys
import warnings
from pathlib import Path

import pytest

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
import gymnasium as gym
from gymnasium.envs.classic_control import CartPoleEnv

from sb3_per.zoo import summary
from sb3_per.zoo.environments import register_environment
from tests.helpers.zoo import error_of, settings

ENV = "Tilted-v0"
MODULE = f"""
import gymnasium as gym

gym.register("{ENV}", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=30)
"""


class Blind(CartPoleEnv):
    """Takes no render mode."""

    def __init__(self):
        super().__init__()


@pytest.fixture
def forget(zoo):
    """Write the module, and return a function that forgets it, as a new process does."""
    Path("tilted.py").write_text(MODULE)

    def forget() -> None:
        sys.modules.pop("tilted", None)
        gym.registry.pop(ENV, None)

    yield forget
    forget()


def test_environments_of_rl_zoo_need_no_module(monkeypatch):
    """Forget what other tests have imported, as a new process does."""
    importlib.import_module("rl_zoo3.import_envs")
    monkeypatch.delitem(sys.modules, "rl_zoo3.import_envs")
    monkeypatch.delitem(gym.registry, "CartPoleNoVel-v1")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*Overriding environment")  # the others are registered again
        assert register_environment("CartPoleNoVel-v1", []) == "CartPoleNoVel-v1"
    assert "CartPoleNoVel-v1" in gym.registry


def test_every_command_imports_the_module(forget, zoo, capsys):
    """The module may stand before the id. A run has the name of the environment without its module."""
    evaluated = ["--eval-freq", "60", "--eval-episodes", "1"]
    zoo("train", "per_dqn", *evaluated, env=f"tilted:{ENV}", entry=settings(n_timesteps=60))
    run = Path("logs", "per_dqn", f"{ENV}_1")
    assert (run / f"{ENV}.zip").exists()
    options = ["--gym-packages", "tilted"]
    for command, more in (("enjoy", ["-n", "20", "--no-render"]), ("record-video", ["-n", "5"])):
        forget()
        zoo(command, "per_dqn", *options, *more, env=ENV)
        assert capsys.readouterr().out.splitlines()[-1].endswith("--gym-packages tilted")
    forget()
    summary.main(["--algo", "per_dqn", "--env", ENV, "-f", "logs", *options])
    assert (run / "learning_curve.png").exists()


def test_an_environment_that_cannot_be_drawn_is_one_line(zoo, capsys):
    gym.register("Blind-v0", entry_point=Blind, max_episode_steps=10)
    try:
        zoo("train", "per_dqn", env="Blind-v0", entry=settings(n_timesteps=30))
        for command in ("enjoy", "record-video"):
            assert "Blind-v0 cannot be drawn" in error_of(capsys, zoo, command, "per_dqn", env="Blind-v0")
        zoo("enjoy", "per_dqn", "--no-render", "-n", "10", env="Blind-v0")
    finally:
        gym.registry.pop("Blind-v0")


def test_an_environment_that_is_not_registered_is_one_line(forget, zoo, capsys):
    Path("logs", "per_dqn", f"{ENV}_1").mkdir(parents=True)
    for command in ("train", "tune", "enjoy", "record-video"):
        error = error_of(capsys, zoo, command, "per_dqn", env=ENV)
        assert f"--env {ENV} is not registered" in error and "write --env module:" in error
    error = error_of(capsys, zoo, "train", "per_dqn", "--gym-packages", "no_such_module", env=ENV)
    assert "--gym-packages no_such_module: there is no module 'no_such_module'" in error
    assert f"--env {ENV} is not registered" in error_of(capsys, summary.main, ["--algo", "per_dqn", "--env", ENV])


def test_an_error_inside_of_a_module_keeps_its_traceback(zoo):
    Path("broken.py").write_text("import no_such_dependency")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        zoo("train", "per_dqn", "--gym-packages", "broken")


def test_a_misspelled_environment_is_named():
    with pytest.raises(ValueError, match=r"is not registered: did you mean 'CartPole-v1'\?"):
        register_environment("CartPol-v1", [])
    with pytest.raises(ValueError, match=r"--env beta is not registered\. If a module"):
        register_environment("beta", [])
