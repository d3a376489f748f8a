"""`sb3-per compare`: the arms differ only as declared, and a comparison runs, stops and continues."""

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("rl_zoo3", reason="needs the extra compare")
from stable_baselines3 import HerReplayBuffer

from sb3_per import LAP, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from sb3_per.cli.main import main
from sb3_per.compare import campaign, runs
from sb3_per.compare.campaign import read
from sb3_per.compare.task import RANDOM, TWIN, Arm, Task, arms_of, jobs_of
from sb3_per.zoo import register

FLIPPING = """
import gymnasium as gym

gym.register("Flipping-v0", entry_point="stable_baselines3.common.envs:BitFlippingEnv", kwargs=dict(max_steps=4))
"""

ENTRY = {
    "n_timesteps": 120,
    "buffer_size": 1_000,
    "policy": "MultiInputPolicy",
    "learning_rate": "lin_0.001",
    "learning_starts": 20,
    "batch_size": 8,
    "n_envs": 2,
    "policy_kwargs": "dict(net_arch=[8])",
    "replay_buffer_class": "HerReplayBuffer",
    "replay_buffer_kwargs": "dict(n_sampled_goal=2)",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a working directory with a module that registers an environment, and a hyperparameter file for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])  # as the command that pip installs has it
    monkeypatch.setattr(runs, "TIMED_SECONDS", 0.05)
    Path("flipping_env.py").write_text(FLIPPING)
    Path("own.yml").write_text(json.dumps({"Flipping-v0": ENTRY}))
    return tmp_path


COMMAND = (
    "compare --algo dqn --env Flipping-v0 -conf own.yml --gym-packages flipping_env --env-kwargs n_bits:4 --eval-episodes 2"
)


def compare(*options: str, command: str = COMMAND) -> None:
    assert main([*command.split(), *options]) == 0


def test_a_stopped_comparison_continues_and_reports(folder, monkeypatch, capsys):
    """The comparison uses HER, a hyperparameter file, and a registered environment with arguments."""
    quick = ("--setting", "scheme='lap', kappa=0.1", "--seeds", "1", "--rates", "1")
    compare(*quick)
    shown = capsys.readouterr().out
    assert "= 4 runs" in shown and "about 1 min for 5 missing runs" in shown
    path = Path("logs/compare/dqn-Flipping-v0.csv")
    rows = read(path)
    assert [row["arm"] for row in rows] == [RANDOM, "stock DQN", TWIN, (setting := quick[1]), f"{setting}, shuffled"]
    assert all(len(row["returns"].split()) == 10 for row in rows)
    assert path.with_suffix(".png").is_file()
    assert re.search(rf"^{setting} - {TWIN} +the task's rate +1 ", shown, re.MULTILINE)
    sentence = shown.splitlines()[-1]
    assert sentence.endswith(".")

    # Remove the last run, as if the comparison had been stopped. Make it in this process, which has imported everything.
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", lambda workers, mp_context: ThreadPoolExecutor(workers))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    compare(*quick)
    shown = capsys.readouterr().out
    assert "about 1 min for 1 missing runs" in shown
    assert [{**row, "seconds": ""} for row in read(path)] == [{**row, "seconds": ""} for row in rows]
    assert shown.splitlines()[-1] == sentence


def test_a_dry_run_shows_the_plan_and_starts_nothing(folder, capsys):
    compare("--quick", "--dry-run")
    shown = capsys.readouterr().out
    assert "arms: stock DQN; uniform twin; defaults; defaults, shuffled" in shown
    assert "= 12 runs" in shown and re.search(r"about \d+ min for 13 missing runs", shown)
    assert not Path("logs").exists()


def model_of(arm: Arm, rate: float, folder: Path) -> Any:
    """Make the model of an arm, before training."""
    sys.path.append(str(folder))
    task = Task("dqn", "Flipping-v0", conf_file="own.yml", env_kwargs=("n_bits:4",), gym_packages=("flipping_env",))
    runs.prepare(task)
    return runs.ArmManager(task, arm, rate, 0, str(folder)).setup_experiment()[0]


def test_arms_differ_only_in_class_and_buffer(folder):
    register()
    arms = arms_of(Task("dqn", "Flipping-v0"), ["scheme=LAP(kappa=0.3)"])
    assert [arm.kind for arm in arms] == ["stock", "uniform", "setting", "shuffled"]
    stock, twin, setting, shuffled = (model_of(arm, 1.0, folder) for arm in arms)
    assert type(stock.replay_buffer) is HerReplayBuffer
    assert stock.replay_buffer.n_sampled_goal == 2
    for model in (twin, setting, shuffled):
        assert type(model).__name__ == "PERDQN"
        assert type(model.replay_buffer) is PrioritizedHerReplayBuffer
        assert model.replay_buffer.n_sampled_goal == 2
        assert (model.batch_size, model.learning_starts) == (stock.batch_size, stock.learning_starts)
    assert twin.replay_buffer.scheme.draws_uniformly
    assert type(setting.replay_buffer.scheme) is LAP and setting.replay_buffer.scheme.kappa == 0.3
    assert isinstance(shuffled.replay_buffer.scheme, LAP) and type(shuffled.replay_buffer.scheme) is not LAP
    assert shuffled.replay_buffer.scheme.kappa == 0.3


def test_draws_by_age_alone_are_a_setting_without_shuffled_control(folder):
    register()
    arms = arms_of(Task("dqn", "Flipping-v0"), ["scheme='uniform', age_decay=3"])
    assert [arm.kind for arm in arms] == ["stock", "uniform", "setting"]
    twin, setting = (model_of(arm, 1.0, folder).replay_buffer for arm in arms[1:])
    assert (twin.settings.age_decay, setting.settings.age_decay) == (0.0, 3)
    assert setting.scheme.draws_uniformly
    with pytest.raises(ValueError, match="uniform twin"):
        arms_of(Task("dqn", "Flipping-v0"), ["scheme='uniform'"])


def test_rates_scale_the_learning_rate_and_keep_its_schedule(folder):
    register()
    arms = arms_of(Task("dqn", "Flipping-v0"), [])
    for arm, rate in ((arms[0], 1 / 3), (arms[1], 1.0), (arms[2], 3.0)):
        schedule = model_of(arm, rate, folder).lr_schedule
        assert [schedule(1.0), schedule(0.5)] == pytest.approx([0.001 * rate, 0.0005 * rate])


def test_the_settings_of_our_files_are_compared(folder):
    """Settings that are not about prioritization stay in every arm. The stock class has no Double Q."""
    register()
    of_file = dict(double_q=True, n_steps=3, replay_buffer_kwargs=dict(scheme="lap", alpha=0.6, frames="auto"))
    arms = arms_of(Task("per_dqn", "CartPole-v1"), [])
    stock, twin, setting, shuffled = (arm.apply(of_file) for arm in arms)
    assert stock == dict(n_steps=3)
    assert twin == dict(double_q=True, n_steps=3, replay_buffer_kwargs=dict(scheme="uniform", frames="auto"))
    assert setting == of_file
    assert shuffled["replay_buffer_kwargs"]["scheme"].alpha == 0.6
    (other,) = (arm for arm in arms_of(Task("per_dqn", "CartPole-v1"), ["alpha=0.7"]) if arm.kind == "setting")
    assert other.apply(of_file)["replay_buffer_kwargs"] == dict(alpha=0.7, frames="auto")
    ours = dict(replay_buffer_class=PrioritizedHerReplayBuffer)
    assert arms[0].apply(ours)["replay_buffer_class"] is HerReplayBuffer
    assert arms[0].apply(dict(replay_buffer_class=PrioritizedReplayBuffer))["replay_buffer_class"] is None


def test_recurrent_algorithms_have_no_stock_arm():
    register()
    assert [arm.kind for arm in arms_of(Task("per_dqn_lstm", "CartPole-v1"), [])] == ["uniform", "setting", "shuffled"]


def test_resuming_takes_no_row_of_other_settings():
    register()
    entry = dict(learning_rate=0.1)
    base = Task("dqn", "CartPole-v1")
    others = [
        (Task("dqn", "CartPole-v0"), entry),
        (Task("dqn", "CartPole-v1", n_timesteps=10), entry),
        (Task("dqn", "CartPole-v1", env_kwargs=("sutton_barto_reward:True",)), entry),
        (Task("dqn", "CartPole-v1", n_episodes=3), entry),
        (base, dict(learning_rate=0.2)),
    ]
    prints = [task.fingerprint(entry) for task, entry in [(base, entry), *others]]
    assert len(set(prints)) == len(prints)
    assert base.fingerprint(dict(entry)) == prints[0]
    jobs = jobs_of(base, entry, arms_of(base, ["alpha=0.5", "alpha=0.6"]), [1.0, 3.0], 2)
    assert len({tuple(name.items()) for name, _ in jobs}) == len(jobs) == 1 + 6 * 2 * 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--setting", "scheme='uniform'"], "uniform twin is compared anyway"),
        (["--setting", "alpah=0.5"], "did you mean 'alpha'"),
        (["--setting", "lap"], "--setting takes keyword arguments"),
        (["--algo", "ppo"], "--algo must be one of"),
        (["--env", "NoSuch-v0"], "NoSuch"),
        (["-conf", "missing.yml"], "missing.yml"),
        (["--rates", "0"], "--rates"),
    ],
)
def test_bad_arguments_are_refused_before_any_run_starts(options, message, folder, capsys):
    with pytest.raises(SystemExit) as stopped:
        compare(*options)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err
    assert not Path("logs").exists()
