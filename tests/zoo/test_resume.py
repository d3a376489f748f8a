"""`train --resume` goes on with the newest run up to its number of steps, however it was stopped."""

import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
from rl_zoo3.utils import ALGOS

from sb3_per.zoo.resume import newest_model
from tests.helpers.zoo import loaded, saved_buffer, settings

INTERRUPT = """
from stable_baselines3.common.callbacks import BaseCallback


class Interrupt(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 130:
            raise KeyboardInterrupt
        return True
"""


def steps_of(run: Path, algo: str) -> int:
    return ALGOS[algo].load(run / "Pendulum-v1.zip", device="cpu").num_timesteps


def test_an_interrupted_run_goes_on_with_its_buffer(zoo, capsys):
    Path("interrupt.py").write_text(INTERRUPT)
    interrupted = settings(n_timesteps=200, learning_starts=120, callback="interrupt.Interrupt")
    run = zoo("train", "per_sac", "--save-replay-buffer", "--resume", entry=interrupted)
    assert steps_of(run, "per_sac") == 130
    going_on = settings(n_timesteps=200, learning_starts=190)
    assert zoo("train", "per_sac", "--save-replay-buffer", "--resume", entry=going_on) == run
    shown = capsys.readouterr().out
    assert "at 130 of 200 steps" in shown
    assert f"The replay buffer has 129 rows of {run / 'replay_buffer.buffer'}" in shown
    assert steps_of(run, "per_sac") == 200
    assert saved_buffer("per_sac", run).size() == pytest.approx(200, abs=1)  # the step of the interrupt is not stored


def test_a_finished_run_goes_on_only_if_more_steps_are_asked_for(zoo, capsys):
    run = zoo("train", "per_sac", "--resume", entry=settings(n_timesteps=60))
    with pytest.raises(SystemExit) as ended:
        zoo("train", "per_sac", "--resume", entry=settings(n_timesteps=60))
    assert ended.value.code == 0
    assert "has come to its end, 60 of 60 steps" in capsys.readouterr().out
    assert zoo("train", "per_sac", "--resume", "-n", "80", entry=settings(n_timesteps=60)) == run
    assert steps_of(run, "per_sac") == 80


def test_a_killed_run_without_its_buffer_goes_on_with_its_networks_and_says_so(zoo, capsys):
    entry = settings(n_timesteps=120, normalize=True, learning_starts=90)
    run = zoo("train", "per_sac", "--save-freq", "50", entry=entry)
    (run / "Pendulum-v1.zip").unlink()  # as a kill leaves it; the statistics of a later step are still there
    n_seen = VecNormalize.load(str(run / "rl_model_vecnormalize_100_steps.pkl"), make_vec_env("Pendulum-v1")).obs_rms.count
    capsys.readouterr()
    assert zoo("train", "per_sac", "--save-freq", "50", "--resume", entry=entry) == run
    shown = capsys.readouterr().out
    assert "at 100 of 120 steps" in shown
    assert f"The statistics of VecNormalize are those of {run / 'rl_model_vecnormalize_100_steps.pkl'}" in shown
    assert "The replay buffer is empty, because none was saved with the model: --save-replay-buffer saves it" in shown
    assert steps_of(run, "per_sac") == 120
    final = VecNormalize.load(str(run / "Pendulum-v1" / "vecnormalize.pkl"), make_vec_env("Pendulum-v1"))
    assert final.obs_rms.count == pytest.approx(n_seen + 21, abs=2)


def test_a_resumed_run_keeps_its_best_score_its_evaluations_and_its_episodes(zoo):
    """No later evaluation replaces the best model of an earlier one that was better."""
    evaluated = ("--eval-freq", "40", "--eval-episodes", "2", "--save-freq", "80")
    run = zoo("train", "per_dqn", *evaluated, entry=settings(n_timesteps=120))
    (run / "CartPole-v1.zip").unlink()  # as a kill leaves it
    with np.load(run / "evaluations.npz") as saved:
        evaluations = dict(saved)
    evaluations["results"][2] = 500.0  # the best return that this task has, after the checkpoint
    np.savez(run / "evaluations.npz", **evaluations)
    best = (run / "best_model.zip").read_bytes()
    (monitored,) = run.glob("*.monitor.csv")
    episodes = monitored.read_text()
    assert episodes.count("\n") > 5  # two lines, then one for each episode
    assert zoo("train", "per_dqn", *evaluated, "--resume", entry=settings(n_timesteps=200)) == run
    assert loaded("per_dqn", run).num_timesteps == 200
    assert (run / "best_model.zip").read_bytes() == best
    with np.load(run / "evaluations.npz") as saved:
        assert saved["timesteps"].tolist() == [40, 80, 120, 160, 200]
        np.testing.assert_array_equal(saved["results"][:2], evaluations["results"][:2])
    after = monitored.read_text()
    assert after.startswith(episodes) and len(after) > len(episodes)


def test_a_run_with_damaged_evaluations_goes_on(zoo, capsys):
    """A kill while SB3 writes them."""
    evaluated = ("--eval-freq", "40", "--eval-episodes", "1", "--save-freq", "80")
    run = zoo("train", "per_dqn", *evaluated, entry=settings(n_timesteps=80))
    content = (run / "evaluations.npz").read_bytes()
    for damaged in (content[: len(content) // 2], b""):
        (run / "CartPole-v1.zip").unlink()
        (run / "evaluations.npz").write_bytes(damaged)
        zoo("train", "per_dqn", *evaluated, "--resume", entry=settings(n_timesteps=120))
        assert "are damaged: they begin anew" in capsys.readouterr().out
        with np.load(run / "evaluations.npz") as saved:
            assert saved["timesteps"].tolist() == [120]


def test_a_checkpoint_without_its_statistics_is_passed_over(tmp_path):
    """A kill between the model and the statistics of VecNormalize."""
    for steps in (100, 200):
        with zipfile.ZipFile(tmp_path / f"rl_model_{steps}_steps.zip", "w") as archive:
            archive.writestr("data", f'{{"num_timesteps": {steps}}}')
    assert newest_model(tmp_path, "Pendulum-v1", False).num_timesteps == 200
    (tmp_path / "rl_model_vecnormalize_100_steps.pkl").touch()
    assert newest_model(tmp_path, "Pendulum-v1", False).num_timesteps == 100


def test_a_stock_algorithm_goes_on_too(zoo, capsys):
    entry = settings(n_timesteps=96, learning_starts=60, replay_buffer_kwargs={})
    run = zoo("train", "sac", "--save-freq", "64", entry=entry)
    (run / "Pendulum-v1.zip").unlink()
    capsys.readouterr()
    assert zoo("train", "sac", "--save-freq", "64", "--resume", entry=entry) == run
    shown = capsys.readouterr().out
    assert "at 64 of 96 steps" in shown and "The replay buffer is empty" in shown
    assert steps_of(run, "sac") == 96


def test_a_run_without_a_complete_model_begins_anew(zoo):
    """A folder without a complete model is not changed."""
    first = zoo("train", "per_dqn", "--resume", entry=settings(n_timesteps=60))
    (first / "CartPole-v1.zip").unlink()
    assert zoo("train", "per_dqn", "--resume", entry=settings(n_timesteps=60)) != first


def test_a_damaged_model_is_passed_over(zoo, capsys):
    run = zoo("train", "per_sac", "--save-freq", "20", entry=settings(n_timesteps=60))
    last, checkpoint = run / "Pendulum-v1.zip", run / "rl_model_60_steps.zip"
    last.write_bytes(last.read_bytes()[:1000])
    content = bytearray(checkpoint.read_bytes())
    content[len(content) // 2] ^= 1  # one bit of a parameter
    checkpoint.write_bytes(content)
    capsys.readouterr()
    assert zoo("train", "per_sac", "--resume", entry=settings(n_timesteps=60)) == run
    assert "at 40 of 60 steps" in capsys.readouterr().out


KILL = """
import os
import signal

from stable_baselines3.common.callbacks import BaseCallback


class Kill(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 230:
            os.kill(os.getpid(), signal.SIGKILL)
        return True
"""


@pytest.mark.slow
def test_a_killed_run_is_resumed_by_the_same_command(zoo):
    """It goes on in its folder from the checkpoint, with the buffer and the statistics of the checkpoint."""
    Path("kill.py").write_text(KILL)
    options = ["--save-replay-buffer", "--save-freq", "100", "--resume", "--eval-freq", "-1"]
    entry = settings(n_timesteps=450, normalize=True)
    Path("killed.yml").write_text(yaml.safe_dump({"Pendulum-v1": {**entry, "callback": "kill.Kill"}}))
    command = ["train", "--algo", "per_sac", "--env", "Pendulum-v1", "-f", "logs", "-conf", "killed.yml", *options]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    killed = subprocess.run([sys.executable, "-m", "sb3_per", *command], capture_output=True, text=True, env=environment)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (run,) = Path("logs", "per_sac").iterdir()
    statistics = VecNormalize.load(str(run / "rl_model_vecnormalize_200_steps.pkl"), make_vec_env("Pendulum-v1"))

    assert zoo("train", "per_sac", *options, entry=entry) == run
    assert loaded("per_sac", run).num_timesteps == 450
    # The last of 200 steps was not stored yet at the checkpoint.
    buffer = saved_buffer("per_sac", run)
    assert buffer.size() == 199 + 250
    assert buffer.dones[198] == 1 and buffer.timeouts[198] == 1
    final = VecNormalize.load(str(run / "Pendulum-v1" / "vecnormalize.pkl"), make_vec_env("Pendulum-v1"))
    assert final.obs_rms.count == pytest.approx(statistics.obs_rms.count + 251, abs=2)
