"""`train --resume` goes on with the newest run up to its number of steps, however it was stopped."""

from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

pytest.importorskip("rl_zoo3", reason="needs the extra zoo")
from rl_zoo3.utils import ALGOS

from tests.zoo.test_scripts import saved_buffer, settings, zoo

__all__ = ["zoo"]  # a fixture

INTERRUPT = """
from stable_baselines3.common.callbacks import BaseCallback


class Interrupt(BaseCallback):
    def _on_step(self):
        if self.num_timesteps == 130:
            raise KeyboardInterrupt
        return True
"""


@pytest.fixture
def interrupted(zoo, monkeypatch, tmp_path) -> dict[str, Any]:
    """Make an entry whose run ends with Ctrl-C after 130 steps."""
    Path("interrupt.py").write_text(INTERRUPT)
    monkeypatch.syspath_prepend(tmp_path)
    return settings(n_timesteps=200, callback="interrupt.Interrupt")


def steps_of(run: Path, algo: str) -> int:
    return ALGOS[algo].load(run / "Pendulum-v1.zip", device="cpu").num_timesteps


def test_an_interrupted_run_goes_on_with_its_buffer(zoo, interrupted, capsys):
    run = zoo("train", "per_sac", "--save-replay-buffer", "--resume", entry=interrupted)
    assert steps_of(run, "per_sac") == 130
    assert zoo("train", "per_sac", "--save-replay-buffer", "--resume", entry=settings(n_timesteps=200)) == run
    assert "at 130 of 200 steps" in capsys.readouterr().out
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
    entry = settings(n_timesteps=120, normalize=True)
    run = zoo("train", "per_sac", "--save-freq", "50", entry=entry)
    (run / "Pendulum-v1.zip").unlink()  # as a kill leaves it
    (run / "Pendulum-v1" / "vecnormalize.pkl").unlink()
    n_seen = VecNormalize.load(str(run / "rl_model_vecnormalize_100_steps.pkl"), make_vec_env("Pendulum-v1")).obs_rms.count
    capsys.readouterr()
    assert zoo("train", "per_sac", "--save-freq", "50", "--resume", entry=entry) == run
    shown = capsys.readouterr().out
    assert "at 100 of 120 steps" in shown
    assert "The replay buffer is empty, because none was saved with the model: --save-replay-buffer saves it" in shown
    assert steps_of(run, "per_sac") == 120
    final = VecNormalize.load(str(run / "Pendulum-v1" / "vecnormalize.pkl"), make_vec_env("Pendulum-v1"))
    assert final.obs_rms.count == pytest.approx(n_seen + 21, abs=2)


@pytest.mark.parametrize("algo", ["sac", "ppo"])
def test_stock_algorithms_go_on_too(algo, zoo, capsys):
    entry: dict[str, Any] = dict(n_timesteps=96, policy="MlpPolicy", normalize=True)
    if algo == "ppo":
        entry.update(n_steps=16, batch_size=16)
    run = zoo("train", algo, "--save-freq", "64", entry=entry, env="Pendulum-v1")
    (run / "Pendulum-v1.zip").unlink()
    capsys.readouterr()
    assert zoo("train", algo, "--save-freq", "64", "--resume", entry=entry, env="Pendulum-v1") == run
    shown = capsys.readouterr().out
    assert "at 64 of 96 steps" in shown
    assert ("The replay buffer is empty" in shown) == (algo == "sac")
    assert steps_of(run, algo) == 96


def test_a_damaged_model_is_passed_over(zoo, capsys):
    run = zoo("train", "per_sac", "--save-freq", "20", entry=settings(n_timesteps=60))
    for name in ("Pendulum-v1.zip", "rl_model_60_steps.zip"):
        (run / name).write_bytes((run / name).read_bytes()[:1000])
    capsys.readouterr()
    assert zoo("train", "per_sac", "--resume", entry=settings(n_timesteps=60)) == run
    assert "at 40 of 60 steps" in capsys.readouterr().out
