"""The summary of a run shows its returns and its learning curve."""

import shutil

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control import CartPoleEnv

pytest.importorskip("rl_zoo3")

from sb3_per.zoo import summary
from sb3_per.zoo.names import newest_run
from tests.helpers.project import ROOT


@pytest.fixture
def run(tmp_path):
    """Make two runs with evaluations, and return the folder of the second."""
    for number in (1, 2):
        folder = tmp_path / "per_dqn" / f"CartPole-v1_{number}"
        folder.mkdir(parents=True)
        returns = np.array([[10.0, 20.0], [100.0 * number, 300.0 * number]])
        np.savez(folder / "evaluations.npz", timesteps=np.array([1_000, 2_000]), results=returns)
    return folder


def test_the_summary_shows_three_returns_the_curve_and_the_next_command(run, capsys):
    summary.main(["--algo", "per_dqn", "--env", "CartPole-v1", "-f", str(run.parents[1]), "--next", "make test"])
    lines = {line.split("  ")[0 if line[0] != " " else 1]: line for line in capsys.readouterr().out.splitlines() if line}
    assert 15 < float(lines["random policy"].split()[2]) < 35
    assert lines["this run"].split()[2:] == "400 (2 episodes after 2,000 steps)".split()
    assert lines["solved task"].split()[2] == "475"
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert lines["Learning curve: " + str(run / "learning_curve.png")]
    assert lines["Try next:"].endswith("make test")


def test_returns_of_0_and_1_have_digits(tmp_path, capsys):
    folder = tmp_path / "per_dqn" / "FrozenLake-v1_1"
    folder.mkdir(parents=True)
    np.savez(folder / "evaluations.npz", timesteps=np.array([1_000]), results=np.array([[0.0, 1.0, 0.0, 1.0]]))
    summary.main(["--algo", "per_dqn", "--env", "FrozenLake-v1", "-f", str(tmp_path)])
    printed = capsys.readouterr().out
    assert "this run           0.50" in printed and "solved task        0.70" in printed
    assert "No better" not in printed


def test_a_run_that_is_no_better_than_random_is_told_where_to_read_on(run, capsys):
    np.savez(run / "evaluations.npz", timesteps=np.array([1_000]), results=np.array([[8.0, 9.0]]))
    summary.main(["--algo", "per_dqn", "--env", "CartPole-v1", "-f", str(run.parents[1])])
    printed = capsys.readouterr().out
    assert 'see "The agent does not learn at all" in docs/troubleshooting.md' in printed
    assert "## The agent does not learn at all" in (ROOT / "docs" / "troubleshooting.md").read_text()


def test_the_solved_return_comes_from_gymnasium_or_from_our_table():
    assert summary.solved_return("MountainCar-v0") == -110
    assert summary.solved_return("Pendulum-v1") == -200
    assert summary.solved_return("Humanoid-v5") is None


def test_the_newest_run_of_an_environment_with_a_slash_is_found(tmp_path):
    (tmp_path / "per_dqn" / "MinAtar-Breakout-v1_2").mkdir(parents=True)
    assert newest_run(tmp_path, "per_dqn", "MinAtar/Breakout-v1").name == "MinAtar-Breakout-v1_2"


def test_what_is_missing_is_an_error_that_says_what_to_do(run, tmp_path, capsys):
    (run / "evaluations.npz").unlink()
    for folder, said in ((tmp_path / "other", "no runs of per_dqn on CartPole-v1"), (run.parents[1], "--eval-freq")):
        with pytest.raises(SystemExit):
            summary.main(["--algo", "per_dqn", "--env", "CartPole-v1", "-f", str(folder)])
        assert said in capsys.readouterr().err


class WithoutRendering(CartPoleEnv):
    """Its constructor takes no ``render_mode``."""

    def __init__(self) -> None:
        super().__init__()


def test_the_summary_needs_no_render_mode(run, capsys):
    gym.register("WithoutRendering-v0", entry_point=WithoutRendering, max_episode_steps=20)
    try:
        shutil.copytree(run, run.parent / "WithoutRendering-v0_1")
        summary.main(["--algo", "per_dqn", "--env", "WithoutRendering-v0", "-f", str(run.parents[1])])
        assert "random policy" in capsys.readouterr().out
    finally:
        gym.registry.pop("WithoutRendering-v0")
