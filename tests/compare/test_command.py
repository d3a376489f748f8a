"""`sb3-per compare`: the arms differ only as declared, and a comparison runs, stops and continues."""

import errno
import itertools
import json
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rl_zoo3", reason="needs the extra compare")
from stable_baselines3 import HerReplayBuffer
from stable_baselines3.common import callbacks
from stable_baselines3.common.evaluation import evaluate_policy

from sb3_per import LAP, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer
from sb3_per.cli.compare import options_of, parser_of
from sb3_per.compare import command, runs
from sb3_per.compare.campaign import missing, read
from sb3_per.compare.task import Arm, Task, arms_of, jobs_of
from sb3_per.sampling.shuffled import Shuffled
from sb3_per.zoo import register
from tests.helpers.project import ROOT

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
    "train_freq": 4,
    "n_envs": 2,
    "policy_kwargs": "dict(net_arch=[8])",
    "replay_buffer_class": "HerReplayBuffer",
    "replay_buffer_kwargs": "dict(n_sampled_goal=2)",
}

COMMAND = "--algo dqn --env Flipping-v0 -conf own.yml --gym-packages flipping_env --env-kwargs n_bits:4 --eval-episodes 2"
PATH = Path("logs/compare/dqn-Flipping-v0.csv")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Make a working directory with a module that registers an environment, and a hyperparameter file for it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("flipping_env.py").write_text(FLIPPING)
    Path("own.yml").write_text(json.dumps({"Flipping-v0": ENTRY}))
    return tmp_path


def compare(*options: str, command_line: str = COMMAND, make_pool: Any = ThreadPoolExecutor) -> None:
    """Run the command in this process, without its imports, and measure shortly."""
    parser = parser_of("sb3-per compare")
    command.compare(parser, options_of(parser, [*command_line.split(), *options]), make_pool, timed_seconds=0.05)


def plan(*options: str) -> command.Plan:
    return command.plan_of(options_of(parser_of(""), [*COMMAND.split(), *options]))


def test_a_stopped_comparison_continues_and_reports(folder, capsys):
    """The comparison uses HER, a hyperparameter file, and a registered environment with arguments."""
    once = ("--setting", "scheme='lap'", "--setting", "alpha=0.8", "--seeds", "1", "--rates", "1")
    compare(*once)
    shown = capsys.readouterr().out
    rows = read(PATH)
    names = ["scheme='lap'", "scheme='lap', shuffled", "alpha=0.8", "alpha=0.8, shuffled"]
    assert [row["arm"] for row in rows] == ["random policy", "stock DQN", "uniform twin", *names]
    assert all(len(row["returns"].split()) == 10 for row in rows)
    # 8 steps at a time, and an update after each 8 from the 24th step on.
    assert [row["updates"] for row in rows] == ["0", *["13"] * 6]
    assert re.search(r"^stock DQN .* 13 +[\d.e-]+$", shown, re.MULTILINE)
    # Rewards are -1 or 0, so no TD error is much above the default kappa.
    assert [float(row["spread"]) < 0.99 for row in rows] == [*[False] * 5, True, True]
    assert shown.count("warning: ") == 1 and "warning: A shuffled: no TD error raised a priority" in shown
    (picture,) = PATH.parent.glob("*.png")
    assert f"learning curves: {picture}" in shown

    # Remove the last run, as if the comparison had been stopped.
    PATH.write_text("".join(PATH.read_text().splitlines(keepends=True)[:-1]))
    compare(*once)
    again = capsys.readouterr().out
    assert "for 1 missing runs" in again
    timeless = [[{**row, "seconds": "", "training": ""} for row in each] for each in (read(PATH), rows)]
    assert timeless[0] == timeless[1]
    reports = [re.sub(r"(?<= 13 ) *[\d.e-]+$", "", text[text.index("A: ") :], flags=re.MULTILINE) for text in (again, shown)]
    assert reports[0] == reports[1]

    # All runs of a smaller comparison are there: it runs nothing, and has a picture of its own.
    compare("--setting", "alpha=0.8", *once[4:], make_pool=None)
    again = capsys.readouterr().out
    assert "missing runs" not in again and again[again.index("A: ") :].startswith("A: alpha=0.8")
    assert len(list(PATH.parent.glob("*.png"))) == 2


def test_runs_of_other_versions_do_not_count(folder):
    """Neither those of another release of this package, nor those of another host."""
    of_now = plan("--quick")
    PATH.parent.mkdir(parents=True)
    results = "1.0,1.0," + "1 " * 9 + "1,13,1\n"
    names = [",".join(f'"{value}"' for value in name.values()) for name, _ in of_now.jobs]
    text = "arm,rate,seed,task,packages,seconds,training,returns,updates,spread\n" + "".join(
        f"{name},{results}" for name in names
    )
    PATH.write_text(text)
    assert missing(PATH, of_now.jobs) == []
    for package in ("sb3_per", "stable-baselines3", "sb3-contrib", "rl_zoo3", "gymnasium", "torch"):
        PATH.write_text(re.sub(f'{package} [^ "]+', f"{package} 0.0.1", text))
        assert len(missing(PATH, of_now.jobs)) == len(of_now.jobs)


def test_the_report_gives_each_run_to_its_arm_rate_and_seed(folder, monkeypatch, capsys):
    """Rows stand in the file as the runs have ended, which is any order."""
    of_now = plan("--seeds", "3", "--rates", "1/2", "--setting", "alpha=0.8")
    assert of_now.rates == [0.5, 1.0]
    arms = [arm.name for arm in of_now.arms]
    lines = [",".join((*of_now.jobs[0][0], "seconds,training,returns,updates,spread")) + "\n"]
    for name, (_, arm, rate, seed) in of_now.jobs:
        number = 7 if arm.kind == "random" else 1_000 * arms.index(arm.name) + 100 * of_now.rates.index(rate) + 10 * seed
        returns = " ".join(str(number + evaluation) for evaluation in range(10))
        lines.insert(1, ",".join(f'"{value}"' for value in name.values()) + f",1.0,{number}.5,{returns},{number},0.5\n")
    PATH.parent.mkdir(parents=True)
    PATH.write_text("".join(lines))
    drawn = []
    monkeypatch.setattr(command, "draw", lambda results, *_: drawn.append(results))
    command.report(of_now)
    (results,) = drawn
    for i, arm in enumerate(arms):
        expected = 1_000 * i + 100 * np.arange(2)[:, None, None] + 10 * np.arange(3)[:, None] + np.arange(10)
        np.testing.assert_array_equal(results.curves[arm], expected)
        assert results.updates[arm] == 1_000 * i + 50 + 10
        assert results.seconds[arm] == 1_000 * i + 50 + 10 + 0.5
    np.testing.assert_array_equal(results.random_returns, 7 + np.arange(10))
    assert "A: alpha=0.8" in capsys.readouterr().out


def test_the_announced_time_includes_evaluations_and_has_a_readable_unit(folder, capsys):
    compare("--quick", "--dry-run")
    assert "about 1 min with 1 worker for 13 missing runs" in capsys.readouterr().out
    compare("--seeds", "9", "--dry-run", "--eval-episodes", "10000000")
    shown = capsys.readouterr().out
    assert re.search(r"about [\d,]+ days with 1 worker for 109 missing runs", shown)
    assert re.search(r"^shorter, with -n 12: about [\d,]+ days; --quick: about [\d,.]+ (days|h)$", shown, re.MULTILINE)
    assert not Path("logs").exists()


def test_the_time_is_that_of_all_jobs_in_a_unit_that_one_can_read():
    trials = {"a": runs.Trial(training=100.0, evaluation=10.0), "b": runs.Trial(training=0.0, evaluation=1.0)}
    arms = {name: Arm(name, name, "per_dqn", "setting") for name in trials}
    jobs: Any = [({}, (None, arms[name], 1.0, 0)) for name in ("a", "a", "b")]
    assert command.seconds_of(jobs, trials) == 221.0
    assert command.seconds_of(jobs, trials, share=0.1) == pytest.approx(41.0)
    for seconds, text in ((10, "1 min"), (5_940, "99 min"), (170_000, "47.2 h"), (1.0864e8, "1,257 days")):
        assert command.duration_text(seconds) == text


def test_the_time_of_evaluations_is_that_of_all_their_episodes(folder, monkeypatch):
    """With a clock that advances by a second at each look, an episode takes one."""
    clock = itertools.count()
    (_, (task, arm, _, _)) = plan("--eval-episodes", "3").jobs[1]
    monkeypatch.setattr(runs, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    assert runs.try_arm(task, arm, 1.0).evaluation == 10 * 3


def test_the_plan_names_arms_runs_steps_environments_and_what_the_seeds_can_decide(folder, capsys):
    plan("--seeds", "8")
    assert "8 seeds cannot show a difference: 8 tests need --seeds 9 or more" in capsys.readouterr().out
    plan("--n-envs", "4", "-n", "200")
    shown = capsys.readouterr().out
    assert "15 seeds can show a difference of 1.1 standard deviations between seeds" in shown
    assert "Flipping-v0, dqn, 200 steps a run in 4 environments\n" in shown
    assert "arms: stock DQN; uniform twin; defaults; defaults, shuffled\n" in shown
    assert "4 arms x 15 seeds x learning rate times 0.333, 1, 3 = 180 runs\n" in shown


def test_hyperparameters_that_are_not_those_of_the_environment_are_named(folder, capsys):
    plan()
    assert "it has none for" not in capsys.readouterr().out
    Path("own.yml").write_text(json.dumps({"default": ENTRY}))
    plan()
    assert "it has none for Flipping-v0 itself" in capsys.readouterr().out


def test_more_environments_make_fewer_updates(folder):
    """16 steps at a time, and an update after each 16 from the 32nd step on."""
    for n_envs, updates in (("4", 7), ("1", 25)):
        (_, (task, arm, rate, seed)) = plan("--n-envs", n_envs).jobs[2]
        assert runs.run(task, arm, rate, seed)["updates"] == updates


@pytest.mark.parametrize(
    ("options", "updates"),
    [
        ((), 39),  # three times those of the other arms, see above
        (("-params", "gradient_steps:2"), 78),
        (("-params", "gradient_steps:-1"), 3 * 13 * 8),
        pytest.param(("-params", "gradient_steps:-1", "train_freq:[2,'step']"), 3 * 25 * 4, marks=pytest.mark.slow),
        pytest.param(("-params", "gradient_steps:-1", "train_freq:4", "--n-envs", "1"), 3 * 25 * 4, marks=pytest.mark.slow),
    ],
)
def test_one_arm_has_more_updates_and_the_others_stay(options, updates, folder):
    """Two environments take four steps each between two calls, and calls begin after 20 steps."""
    without, with_more = plan(*options), plan(*options, "--more-updates", "3")
    assert [arm.name for arm in with_more.arms if arm not in without.arms] == ["uniform twin, 3 times the updates"]
    names = [name for name, _ in with_more.jobs]
    assert [name for name in names if "times" not in name["arm"]] == [name for name, _ in without.jobs]
    found = {}
    for _, (task, arm, rate, seed) in with_more.jobs[1:4]:
        result = runs.run(task, arm, rate, seed)
        found[arm.kind] = result["updates"]
        assert result["training"] > 0.0
    assert found == {"stock": updates // 3, "uniform": updates // 3, "more": updates}


def test_calls_of_different_length_have_as_many_times_the_updates(folder):
    """With `gradient_steps=-1`, a call makes as many updates as its episode has steps."""
    episodes = ("-params", "gradient_steps:-1", "train_freq:[1,'episode']", "--n-envs", "1", "--more-updates", "2")
    of_arms = plan(*episodes).jobs[2:4]
    numbers = []
    for _, (task, arm, rate, seed) in of_arms:
        with runs._manager_of(task, arm, rate, seed) as manager:
            model = manager.setup_experiment()[0]
            calls = []
            model.train = lambda gradient_steps, batch_size, calls=calls: calls.append(gradient_steps)
            more = [callback for callback in manager.callbacks if isinstance(callback, runs._MoreUpdates)]
            model.learn(120, callback=more)
        numbers.append(calls)
    assert len(set(numbers[0])) > 1  # episodes end early where the goal is reached
    assert numbers[1] == [2 * number for number in numbers[0]]


def test_evaluations_are_no_training(folder, monkeypatch):
    """With a clock that only evaluations move, training takes no time."""
    now = [0.0]

    def evaluated(*args: Any, **kwargs: Any) -> Any:
        now[0] += 100.0
        return evaluate_policy(*args, **kwargs)

    monkeypatch.setattr(callbacks, "evaluate_policy", evaluated)
    monkeypatch.setattr(runs, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    (_, (task, arm, rate, seed)) = plan().jobs[2]
    assert runs.run(task, arm, rate, seed)["training"] == 0.0
    assert now[0] >= 1_000.0


def test_the_module_of_an_environment_may_stand_before_its_id(folder):
    """As in Gymnasium. Results are those of the same environment."""
    words = COMMAND.replace(" --gym-packages flipping_env", "").replace("Flipping-v0", "flipping_env:Flipping-v0").split()
    assert command.plan_of(options_of(parser_of(""), words)).jobs[1][0] == plan().jobs[1][0]


def model_of(arm: Arm, rate: float, folder: Path) -> Any:
    """Make the model of an arm, before training."""
    task = Task("dqn", "Flipping-v0", conf_file="own.yml", env_kwargs={"n_bits": 4}, gym_packages=("flipping_env",))
    runs.prepare(task)
    return runs.ArmManager(task, arm, str(folder), rate, 0).setup_experiment()[0]


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
    assert type(shuffled.replay_buffer.scheme) is Shuffled and shuffled.replay_buffer.scheme.scheme.kappa == 0.3


def test_draws_by_age_alone_have_no_shuffled_control_and_recurrent_algorithms_no_stock_arm():
    register()
    arms = arms_of(Task("dqn", "CartPole-v1"), ["scheme='uniform', age_decay=3"])
    assert [arm.kind for arm in arms] == ["stock", "uniform", "setting"]
    assert [arm.kind for arm in arms_of(Task("per_dqn_lstm", "CartPole-v1"), [])] == ["uniform", "setting", "shuffled"]


def test_rates_scale_the_learning_rate_and_keep_its_schedule(folder):
    register()
    arms = arms_of(Task("dqn", "Flipping-v0"), [])
    for arm, rate in ((arms[0], 1 / 3), (arms[2], 3.0)):
        schedule = model_of(arm, rate, folder).lr_schedule
        assert [schedule(1.0), schedule(0.5)] == pytest.approx([0.001 * rate, 0.0005 * rate])


def test_the_settings_of_our_files_are_compared():
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
    assert arms[0].apply(dict(replay_buffer_class=PrioritizedHerReplayBuffer))["replay_buffer_class"] is HerReplayBuffer
    in_kwargs = dict(replay_buffer_kwargs=dict(n_steps=3, gamma=0.9, n_sampled_goal=2, update_from_virtual=False))
    for arm in arms:  # all arms learn from the same returns, and SB3's HER lacks a setting of ours
        applied = arm.apply(in_kwargs)
        assert (applied["n_steps"], applied["gamma"]) == (3, 0.9)
        kwargs = applied["replay_buffer_kwargs"]
        assert kwargs["n_sampled_goal"] == 2 and ("update_from_virtual" in kwargs) == (arm.kind != "stock")
    assert arms[0].apply(dict(replay_buffer_class=PrioritizedReplayBuffer))["replay_buffer_class"] is None


def test_runs_of_other_settings_do_not_count():
    register()
    entry = dict(learning_rate=0.1)
    base = Task("dqn", "CartPole-v1")
    others = [
        (Task("dqn", "CartPole-v1", n_timesteps=10), entry),
        (Task("dqn", "CartPole-v1", env_kwargs={"sutton_barto_reward": True}), entry),
        (Task("dqn", "CartPole-v1", n_episodes=3), entry),
        (base, dict(learning_rate=0.2)),
    ]
    prints = [task.fingerprint(entry) for task, entry in [(base, entry), *others]]
    assert len(set(prints)) == len(prints)
    jobs = jobs_of(base, entry, arms_of(base, ["alpha=0.5", "alpha=0.6"]), [1.0, 3.0], 2)
    assert len({tuple(name.items()) for name, _ in jobs}) == len(jobs) == 1 + 6 * 2 * 2


# By options: what the message contains.
REFUSED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("--algo", "DQN"): ("--algo DQN cannot be compared: did you mean dqn?",),
    ("--algo", "sac_lstm"): ("--algo sac_lstm cannot be compared: did you mean per_sac_lstm?",),
    ("--env", "Flippin-v0"): ("--env Flippin-v0", "did you mean 'Flipping-v0'?"),
    ("--env", "CartPole-v1"): ("own.yml has no hyperparameters for --env CartPole-v1",),
    ("--algo", "sac"): (
        "--algo sac on --env Flipping-v0: The algorithm only supports (Box) as action spaces but Discrete(4) was provided",
    ),
    ("-params", "learning_starts=50"): ("learning_starts=50", "write NAME:VALUE, e.g. learning_starts:50"),
    ("-params", "learning_starts:fifty"): ("-params learning_starts:fifty: fifty is no literal",),
    ("-params", "learning_start:50"): ("learning_start",),
    ("--env-kwargs", "n_bit:4"): ("n_bit",),
    ("--env", "no_such_module:Flipping-v0"): ("there is no module 'no_such_module'",),
    ("--more-updates", "0"): ("--more-updates: '0' is not an integer of at least 2",),
    ("--more-updates", "1"): ("--more-updates: '1' is not",),
    ("--more-updates", "-2"): ("--more-updates: '-2' is not",),
    ("--more-updates", "1.5"): ("--more-updates: '1.5' is not",),
    ("--more-updates", "four"): ("--more-updates: 'four' is not",),
    ("--n-envs", "0"): ("--n-envs", "'0'"),
    ("--seeds", "-3"): ("--seeds", "'-3'"),
    ("-n", "5"): ("-n 5 is too short", "10 evaluations with 2 environments need 20 steps"),
    ("-n", "20"): ("no run reaches learning_starts=20 in 20 steps",),
    ("-f", "own.yml"): ("Not a directory: 'own.yml/compare'",),
    ("-params", "learning_rate:'fast'"): ("learning_rate: 'fast' is neither a number nor a linear schedule",),
    ("--device", "abacus"): ("abacus",),
    ("--rates", "a/b"): ("--rates", "'a/b'"),
    ("--setting", "lap"): ("--setting lap: lap is no keyword argument",),
    ("--setting", "scheme='lapp'"): ("'lapp'", "did you mean 'lap'"),
    ("--setting", "alpah=0.5"): ("--setting alpah=0.5", "did you mean 'alpha'"),
    ("--setting", "alpha=-1"): ("alpha", "-1"),
    ("--setting", "scheme='uniform'"): ("scheme='uniform' draws uniformly, as the uniform twin does",),
    ("--setting", "alpha=0"): ("alpha=0 draws uniformly, as the uniform twin does",),
    ("--setting", "kappa=0.1"): ("kappa=0.1 has no effect with scheme='proportional'",),
    ("--setting", "n_steps=3"): ("n_steps is no prioritization", "give it to all arms, with -params"),
    ("-params", "alpha:0.7"): ('alpha is a setting of the buffer: write --setting "alpha=0.7"',),
}


def test_bad_input_is_one_line_that_names_the_value(folder, capsys):
    for options, parts in REFUSED.items():
        with pytest.raises(SystemExit) as stopped:
            compare("--quick", *options)
        assert stopped.value.code == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("sb3-per compare: ")
        for part in parts:
            assert part in line, options
    assert not Path("logs").exists()


def test_results_with_other_columns_are_refused(folder, capsys):
    PATH.parent.mkdir(parents=True)
    PATH.write_text("arm,rate,seed,task,seconds,returns\nstock DQN,1,0,abc,1.0,1 2\n")
    with pytest.raises(SystemExit) as stopped:
        compare()
    assert stopped.value.code == 2 and f"{PATH} has columns of another version" in capsys.readouterr().err


def test_what_stops_the_runs_is_one_line(folder, capsys):
    for error, code, said in (
        (OSError(errno.ENOSPC, "No space left on device"), 1, "No space left on device"),
        (KeyboardInterrupt(), 130, "stopped;"),
    ):

        def fail(workers: int, error: BaseException = error) -> Any:
            raise error

        with pytest.raises(SystemExit) as stopped:
            compare("--quick", make_pool=fail)
        assert stopped.value.code == code
        last = capsys.readouterr().err.splitlines()[-1]
        assert last.startswith("sb3-per compare: stopped") and said in last and last.endswith("; the same command goes on")


@pytest.mark.slow
@pytest.mark.parametrize("pauses", [(0.0,), (0.0, 0.0), (0.0, 0.3, 1.0)], ids=["once", "twice at once", "three times"])
def test_a_comparison_that_is_terminated_ends_cleanly(folder, pauses):
    """Its workers end too: otherwise the pool waits for them."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sb3_per", "compare", *COMMAND.split(), "-n", "100000000", "--quick"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while not PATH.exists() and process.poll() is None:  # until the random policy has its row, and the next run has begun
        time.sleep(0.1)
    for pause in pauses:
        time.sleep(pause)
        process.terminate()
    _, error = process.communicate(timeout=600)
    assert process.returncode == 130 and error.endswith(" compare: stopped; the same command goes on\n")
    assert "Traceback" not in error
