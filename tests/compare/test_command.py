"""`sb3-per compare`: the arms differ only as declared, and a comparison runs, stops and continues."""

import errno
import json
import os
import re
import subprocess
import sys
import time
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
from sb3_per.compare.command import duration_text
from sb3_per.compare.task import RANDOM, TWIN, Arm, Task, arms_of, jobs_of
from sb3_per.zoo import register
from tests.utils import ROOT

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


@pytest.fixture
def in_this_process(monkeypatch):
    """Run in this process, which has imported everything."""
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", lambda workers, mp_context: ThreadPoolExecutor(workers))


def rows_without_times(path: Path) -> list[dict[str, str]]:
    return sorted(({**row, "seconds": ""} for row in read(path)), key=str)


def test_a_stopped_comparison_continues_and_reports(folder, monkeypatch, capsys):
    """The comparison uses HER, a hyperparameter file, and a registered environment with arguments."""
    quick = ("--setting", "scheme='lap', kappa=0.1", "--seeds", "1", "--rates", "1")
    compare(*quick)
    shown = capsys.readouterr().out
    assert "= 4 runs" in shown and "about 1 min for 5 missing runs" in shown
    path = Path("logs/compare/dqn-Flipping-v0.csv")
    rows = rows_without_times(path)
    assert [row["arm"] for row in read(path)] == [RANDOM, "stock DQN", TWIN, (setting := quick[1]), f"{setting}, shuffled"]
    assert all(len(row["returns"].split()) == 10 for row in rows)
    # Training has changed the priorities of the setting.
    assert {row["arm"] for row in rows if float(row["spread"]) < 1.0} == {setting, f"{setting}, shuffled"}
    (picture,) = path.parent.glob("*.png")
    assert f"learning curves: {picture}" in shown
    assert re.search(r"^A - twin +", shown, re.MULTILINE) and f"A: {setting}" in shown
    sentence = shown.splitlines()[-1]
    assert sentence.endswith(".")

    # Remove the last run, as if the comparison had been stopped.
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", lambda workers, mp_context: ThreadPoolExecutor(workers))
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    compare(*quick)
    shown = capsys.readouterr().out
    assert "about 1 min for 1 missing runs" in shown
    assert rows_without_times(path) == rows
    assert shown.splitlines()[-1] == sentence

    # All runs are there: the same command prints the same, and runs nothing.
    monkeypatch.setattr(campaign, "ProcessPoolExecutor", None)
    compare(*quick)
    again = capsys.readouterr().out
    assert "missing runs" not in again
    assert again[again.index("A: ") :] == shown[shown.index("A: ") :]


def test_the_first_form_of_the_command_runs_to_its_end(folder, in_this_process, capsys):
    """Without --setting, the defaults are judged. Three seeds are a first impression."""
    compare("--quick")
    shown = capsys.readouterr().out
    assert "--quick gives a first impression" in shown
    assert "A: defaults" in shown and re.search(r"^A - stock  ", shown, re.MULTILINE)
    last = shown.splitlines()[-1]
    assert last.startswith(("First impression (3 seeds), no verdict: ", "Nothing learned: "))
    assert "p: " not in shown
    assert "runs are there" not in shown  # it would stand in the line of the progress bar


def test_the_result_is_printed_before_the_picture_is_drawn(folder, in_this_process, monkeypatch, capsys):
    def fail(*_: object) -> None:
        raise RuntimeError("no picture")

    monkeypatch.setattr("sb3_per.compare.command.draw", fail)
    with pytest.raises(RuntimeError, match="no picture"):
        compare("--seeds", "1", "--rates", "1")
    shown = capsys.readouterr().out
    assert "A - stock" in shown and shown.splitlines()[-1].startswith(("First impression (1 seed)", "Nothing learned: "))


def test_a_comparison_has_a_picture_of_its_own(folder, in_this_process):
    options = ("--seeds", "1", "--rates", "1")
    compare(*options)
    (first,) = Path("logs/compare").glob("*.png")
    drawn = first.read_bytes()
    compare(*options, "--setting", "alpha=0.9")
    assert len(list(Path("logs/compare").glob("*.png"))) == 2 and first.read_bytes() == drawn


def test_draws_that_stayed_uniform_are_named(folder, in_this_process, capsys):
    """Rewards are -1 or 0, so no TD error is much above the default kappa."""
    options = ("--seeds", "1", "--rates", "1", "--setting", "scheme='lap'", "--setting", "alpha=0.8")
    compare(*options)
    shown = capsys.readouterr().out
    assert shown.count("drew uniformly in all runs: ") == 1
    assert "warning: scheme='lap' drew uniformly in all runs" in shown and "smaller kappa" in shown
    spread = {row["arm"]: float(row["spread"]) for row in read(Path("logs/compare/dqn-Flipping-v0.csv"))}
    assert spread["scheme='lap'"] >= 0.99 > spread["alpha=0.8"]


def test_few_seeds_are_named_before_any_run(folder, capsys):
    compare("--seeds", "7", "--rates", "1", "--dry-run")
    shown = capsys.readouterr().out
    assert "7 seeds cannot show a difference, 4 tests need 8: this gives a first impression, no verdict" in shown
    compare("--seeds", "8", "--rates", "1", "--dry-run")
    assert "first impression" not in capsys.readouterr().out


def test_the_default_number_of_seeds_can_decide(folder, capsys):
    settings = [word for alpha in (0.1, 0.2, 0.3, 0.4, 0.5) for word in ("--setting", f"alpha={alpha}")]
    for options, seeds in (([], 10), (settings, 11)):
        compare("--dry-run", *options)
        shown = capsys.readouterr().out
        assert f"x {seeds} seeds" in shown and "first impression" not in shown


def test_equal_settings_are_trained_once(folder, capsys):
    settings = ("alpha=0.6", "scheme='LAP'", "scheme=LAP()", "scheme='lap', kappa=1", "alpha=0.6", "beta_start=0.4")
    compare("--dry-run", "--quick", *(word for setting in settings for word in ("--setting", setting)))
    shown = capsys.readouterr().out
    assert "arms: stock DQN; uniform twin; alpha=0.6; alpha=0.6, shuffled; scheme='LAP'; scheme='LAP', shuffled\n" in shown
    for same, first in ((settings[2], settings[1]), (settings[3], settings[1]), (settings[5], settings[0])):
        assert f"{same} is the same as {first}: it is trained once" in shown


def test_warnings_of_the_arms_come_before_the_runs(folder, in_this_process, capsys, recwarn):
    """The environment warns whenever it is made."""
    text = "import warnings\n\n\ndef make(**arguments):\n    warnings.warn('the bits are old')\n"
    text += "    from stable_baselines3.common.envs import BitFlippingEnv\n\n    return BitFlippingEnv(**arguments)\n"
    Path("warning_env.py").write_text(f"import gymnasium as gym\n{text}\n\ngym.register('Flipping-v0', entry_point=make)\n")
    command = COMMAND.replace("flipping_env", "warning_env").replace("n_bits:4", "n_bits:4 max_steps:4")
    compare("--quick", "--seeds", "1", command=command)
    streams = capsys.readouterr()
    assert streams.out.count("warning: the bits are old") == 1
    assert streams.out.index("the bits are old") < streams.out.index("measuring the time")
    assert "the bits are old" not in streams.err


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
    assert isinstance(shuffled.replay_buffer.scheme, LAP) and type(shuffled.replay_buffer.scheme) is not LAP
    assert shuffled.replay_buffer.scheme.kappa == 0.3


def test_draws_by_age_alone_are_a_setting_without_shuffled_control(folder):
    register()
    arms = arms_of(Task("dqn", "Flipping-v0"), ["scheme='uniform', age_decay=3"])
    assert [arm.kind for arm in arms] == ["stock", "uniform", "setting"]
    twin, setting = (model_of(arm, 1.0, folder).replay_buffer for arm in arms[1:])
    assert (twin.settings.age_decay, setting.settings.age_decay) == (0.0, 3)
    assert setting.scheme.draws_uniformly


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


# By options: what the message contains.
REFUSED: dict[tuple[str, ...], tuple[str, ...]] = {
    ("--algo", "DQN"): ("--algo DQN cannot be compared: did you mean dqn?",),
    ("--algo", "ppo"): ("--algo ppo cannot be compared: choose from sac, td3, ", ", per_dqn, "),
    ("--env", "Flippin-v0"): ("--env Flippin-v0", "did you mean 'Flipping-v0'?"),
    ("--env", "CartPole-v1"): ("own.yml has no hyperparameters for --env CartPole-v1",),
    ("--algo", "sac"): (
        "--algo sac on --env Flipping-v0: The algorithm only supports (Box) as action spaces but Discrete(4) was provided",
    ),
    ("-params", "learning_starts=50"): ("learning_starts=50", "write NAME:VALUE, e.g. learning_starts:50"),
    ("-params", "learning_starts:fifty"): ("learning_starts:fifty", "fifty"),
    ("-params", "learning_start:50"): ("learning_start",),
    ("--env-kwargs", "n_bits=4"): ("n_bits=4", "n_bits:4"),
    ("--env-kwargs", "n_bit:4"): ("n_bit",),
    ("--gym-packages", "no_such_module"): ("--gym-packages no_such_module: there is no module 'no_such_module'",),
    ("--env", "no_such_module:Flipping-v0"): ("there is no module 'no_such_module'",),
    ("--workers", "0"): ("--workers", "'0'"),
    ("--seeds", "0"): ("--seeds", "'0'"),
    ("--seeds", "-3"): ("--seeds", "'-3'"),
    ("--eval-episodes", "0"): ("--eval-episodes", "'0'"),
    ("-n", "0"): ("-n", "'0'"),
    ("-n", "5"): ("-n 5 is too short", "10 evaluations with 2 environments need 20 steps"),
    ("-n", "20"): ("no run reaches learning_starts=20 in 20 steps",),
    ("-f", "own.yml"): ("-f: the folder own.yml/compare cannot be made (Not a directory)",),
    ("-f", "/proc/none"): ("-f: the folder /proc/none/compare cannot be made",),
    ("-conf", "missing.yml"): ("missing.yml",),
    ("-params", "learning_rate:'fast'"): ("learning_rate: 'fast' is neither a number nor a linear schedule",),
    ("--device", "abacus"): ("abacus",),
    ("--rates", "0"): ("--rates", "'0'"),
    ("--rates", "a/b"): ("--rates", "'a/b'"),
    ("--setting", "lap"): ("--setting takes keyword arguments", "'lap'"),
    ("--setting", "alpah=0.5"): ("alpah", "did you mean 'alpha'"),
    ("--setting", "alpha=-1"): ("alpha", "-1"),
    ("--setting", "scheme='uniform'"): ("scheme='uniform' draws uniformly, and the uniform twin is compared anyway",),
    ("--setting", "alpha=0"): ("alpha=0 draws uniformly, and the uniform twin is compared anyway",),
    ("--setting", "kappa=0.1"): ("kappa=0.1 has no effect with scheme='proportional'",),
    ("--setting", "kappa=1"): ("kappa=1 has no effect with scheme='proportional'",),
    ("--setting", "scheme='lap', beta_start=0.5"): ("beta_start=0.5 has no effect with scheme='lap'",),
    ("--setting", "recency_min=10"): ("recency_min=10 has no effect",),
    ("--setting", "storage_folder='here'"): ("storage_folder='here' is no prioritization", "leave it out"),
    ("--setting", "n_steps=3"): ("n_steps=3 is no prioritization", "-params n_steps:3"),
}


@pytest.mark.parametrize("options", REFUSED, ids=" ".join)
def test_bad_input_is_one_line_that_names_the_value_before_anything_is_timed(options, folder, monkeypatch, capsys):
    monkeypatch.setattr("sb3_per.compare.command.seconds_of", None)
    with pytest.raises(SystemExit) as stopped:
        compare(*options)
    assert stopped.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("sb3-per compare: ") and all(part in line for part in REFUSED[options])
    assert not Path("logs").exists()


def test_an_algorithm_without_a_file_of_the_zoo_names_ours(folder, capsys):
    with pytest.raises(SystemExit) as stopped:
        compare(command="compare --algo sac_lstm --env Pendulum-v1")
    assert stopped.value.code == 2
    assert "--algo sac_lstm cannot be compared: did you mean per_sac_lstm?" in capsys.readouterr().err


@pytest.mark.parametrize("phase", ["inspect_arm", "seconds_of"])
def test_an_interrupt_before_the_runs_is_one_line(phase, folder, monkeypatch, capsys):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"sb3_per.compare.command.{phase}", interrupt)
    with pytest.raises(SystemExit) as stopped:
        compare()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == "\nsb3-per compare: stopped before any run\n"


STOPPED = """
import sys, types
from pathlib import Path
from sb3_per.cli import compare
from sb3_per.compare.campaign import run_missing

def run_jobs(parser, *_):
    job = "import pathlib, time; pathlib.Path('begun').touch(); time.sleep(3600)"
    try:
        run_missing(Path("runs.csv"), [({"seed": seed}, (job,)) for seed in range(3)], exec, 2)
    except KeyboardInterrupt:
        parser.exit(130, "stopped\\n")

compare.require = print  # it would import the Zoo
sys.modules["sb3_per.compare.command"] = types.SimpleNamespace(compare=run_jobs)
compare.main(["--algo", "dqn", "--env", "CartPole-v1"])
"""


def test_a_comparison_that_is_terminated_ends_cleanly(tmp_path):
    """Its workers end too: otherwise the pool waits for them."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, "-c", STOPPED],
        cwd=tmp_path,
        env=environment,
        text=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    while not (tmp_path / "begun").exists() and process.poll() is None:
        time.sleep(0.1)
    process.terminate()
    _, error = process.communicate(timeout=600)
    assert (process.returncode, error) == (130, "stopped\n")


@pytest.mark.parametrize("quick", [False, True])
def test_a_long_comparison_says_what_shorter_ones_take(quick, folder, monkeypatch, capsys):
    monkeypatch.setattr("sb3_per.compare.command.seconds_of", lambda *_: runs.Seconds(training=90_000.0, evaluation=900.0))
    compare("--dry-run", *(["--quick"] if quick else ["--seeds", "8"]))
    shown = capsys.readouterr().out
    if quick:
        assert re.search(r"about 14 days for 13 missing runs.*\nshorter, with -n 12: about 35.8 h\n", shown)
    else:
        assert "about 102 days for 97 missing runs" in shown
        assert "shorter, with -n 12: about 11 days; --quick: about 13 days; both: about 33.0 h" in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(10, "1 min"), (5_940, "99 min"), (7_200, "2.0 h"), (170_000, "47.2 h"), (864_000, "10 days"), (1.0864e8, "1,257 days")],
)
def test_durations_have_a_unit_that_one_can_read(seconds, text):
    assert duration_text(seconds) == text


def test_the_module_of_an_environment_may_stand_before_its_id(folder, capsys):
    """As in Gymnasium. Results are those of the same environment."""
    command = COMMAND.replace(" --gym-packages flipping_env", "").replace("Flipping-v0", "flipping_env:Flipping-v0")
    compare("--quick", "--seeds", "1", "--dry-run", command=command)
    assert "Flipping-v0, dqn, 120 steps a run" in capsys.readouterr().out


def test_a_full_disk_stops_a_comparison_with_one_line(folder, in_this_process, monkeypatch, capsys):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(campaign, "_append", full)
    with pytest.raises(SystemExit) as stopped:
        compare("--quick", "--seeds", "1")
    assert stopped.value.code == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("sb3-per compare: stopped by an error: ") and "No space left on device" in last


def test_results_of_another_version_are_not_mixed(folder, capsys):
    path = Path("logs/compare/dqn-Flipping-v0.csv")
    path.parent.mkdir(parents=True)
    path.write_text("arm,rate,seed,task,seconds,returns\nstock DQN,1,0,abc,1.0,1 2\n")
    with pytest.raises(SystemExit) as stopped:
        compare()
    assert stopped.value.code == 2 and str(path) in capsys.readouterr().err
