"""All commands find environments that a module registers, and say in one line what is missing."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
import gymnasium as gym

from sb3_per.zoo import main, summary
from tests.zoo.test_scripts import error_of, settings, zoo

__all__ = ["zoo"]  # a fixture

ENV = "Tilted-v0"
MODULE = f"""
import gymnasium as gym

gym.register("{ENV}", entry_point="gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=30)
"""


@pytest.fixture
def forget(zoo, monkeypatch, tmp_path):
    """Write the module, and return a function that forgets it, as a new process does."""
    Path("tilted.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)

    def forget() -> None:
        sys.modules.pop("tilted", None)
        gym.registry.pop(ENV, None)

    yield forget
    forget()


@pytest.mark.parametrize("form", [(ENV, ["--gym-packages", "tilted"]), (f"tilted:{ENV}", [])], ids=["option", "module:id"])
def test_every_command_imports_the_module(form, forget, zoo, capsys, monkeypatch):
    """A run has the name of the environment without its module."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env, options = form
    Path("own.yml").write_text(f"{ENV}: {settings(n_timesteps=60)}")
    evaluated = ["--eval-freq", "60", "--eval-episodes", "1"]
    main(["train", "--algo", "per_dqn", "--env", env, *options, *evaluated, "-conf", "own.yml"])
    run = Path("logs", "per_dqn", f"{ENV}_1")
    assert (run / f"{ENV}.zip").exists()
    for script, more in (("enjoy", ["-n", "20", "--no-render"]), ("record-video", ["-n", "5"])):
        forget()
        zoo(script, "per_dqn", *options, *more, env=env)
    assert list((run / "videos").glob("*.mp4"))
    forget()
    summary.main(["--algo", "per_dqn", "--env", env, "-f", "logs", *options])
    assert (run / "learning_curve.png").exists()


@pytest.mark.parametrize("script", ["train", "tune", "enjoy", "record-video"])
def test_an_environment_that_is_not_registered_is_one_line(script, forget, zoo, capsys):
    Path("logs", "per_dqn", f"{ENV}_1").mkdir(parents=True)

    def run(*arguments: str) -> None:
        zoo(*arguments, env=ENV)

    error = error_of(capsys, run, script, "per_dqn")
    assert f"--env {ENV} is not registered" in error and "name the module with --gym-packages" in error
    error = error_of(capsys, run, script, "per_dqn", "--gym-packages", "no_such_module")
    assert "--gym-packages no_such_module: there is no module 'no_such_module'" in error


def test_a_summary_of_an_environment_that_is_not_registered_is_one_line(forget, capsys):
    with pytest.raises(SystemExit) as ended:
        summary.main(["--algo", "per_dqn", "--env", ENV])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--env {ENV} is not registered" in line


def test_an_error_inside_of_a_module_keeps_its_traceback(forget, zoo):
    Path("broken.py").write_text("import no_such_dependency")
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency"):
        zoo("enjoy", "per_dqn", "--gym-packages", "broken", env=make_run(ENV))


def make_run(env: str) -> str:
    Path("logs", "per_dqn", f"{env}_1").mkdir(parents=True)
    return env
