"""The examples run to their end, with few steps, and show what they promise."""

import contextlib
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import SAC, TD3
from stable_baselines3.common import evaluation

from tests.helpers.project import alone_with_ray

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py") if not path.stem.endswith("_env"))

# What each script shows on the terminal, and which files it leaves.
PROMISES: dict[str, tuple[list[str], list[str]]] = {
    "actors": (["samples_per_insert", "mean return"], []),
    "atari": (["effective_sample_size"], ["atari.zip"]),
    "continue_run": (
        ["saved:  300 steps, beta 0.600\n", "loaded: 300 steps, beta 0.600\n", "end:    600 steps, beta 0.900\n"],
        ["continue_run.zip", "continue_run_buffer.pkl"],
    ),
    "double_dqn": (["mean return"], ["double_dqn.zip"]),
    "envpool_reacher": (["seed 0: mean return"], []),
    "from_sac": (
        ["300 transitions in a PrioritizedReplayBuffer", "PERSAC, 600 steps"],
        ["from_sac.zip", "from_sac_buffer.pkl"],
    ),
    "her_bit_flipping": (["success rate"], []),
    "lap_td3": (["mean return"], ["lap_td3.zip"]),
    "many_environments": (["seed 0, uniform draws: 50 updates", "seed 0, priorities: 50 updates"], []),
    "own_algorithm": ([" loss ", "max_priority", "effective_sample_size", "mean return"], []),
    "own_scheme": ([" critic_loss ", "max_priority", "effective_sample_size", "mean return"], []),
    "pairs_trading": (["SAC: mean return", "PERSAC: mean return", "rule: mean return"], ["pairs_trading.png"]),
    "resume": (
        ["ended with -9, continues at ", " of 300 steps\n", "end: 300 steps, mean return"],
        ["resume.png", "resume/*_300_steps.zip"],
    ),
    "start_from_demonstrations": (["transitions, mean return", "mean return after 200 steps"], []),
    "swap_import": (["mean return"], ["swap_import.zip"]),
    "tune_with_zoo": (
        ["Number of finished trials:  2", " scheme: ", " alpha: "],
        ["zoo/per_dqn/report_*.csv"],
    ),
}


def continued_with_the_same_buffer(results: dict[str, Any]) -> None:
    buffer = results["model"].replay_buffer
    assert buffer.numbering.next_step == 600
    n_batches = 600 - 100  # from learning_starts on
    assert buffer.beta == pytest.approx(0.4 + 0.6 * n_batches / 600, abs=0.01)


def own_algorithm_has_no_actor(results: dict[str, Any]) -> None:
    """A setting of the actor's batch would have no effect."""
    with pytest.raises(NotImplementedError, match="actor_batch='uniform' is not supported: it has no actor"):
        type(results["model"])("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(actor_batch="uniform"))


def learning_curve_has_both_parts(results: dict[str, Any]) -> None:
    """The second part begins at the checkpoint of the first one, and reaches the last step."""
    first, second = (part["timesteps"] for part in results["parts"])
    assert first[0] == 50 and second[-1] == 300
    # The run is killed at the checkpoint of 150 steps, or a little later on a busy machine.
    assert 150 <= second[0] - 50 <= first[-1] < 300


def has_a_picture_of_the_learning_curves(results: dict[str, Any]) -> None:
    ours, theirs, rule = results["axes"].get_lines()
    for line in (ours, theirs):
        assert len(line.get_xdata()) == 10
        assert np.isfinite(line.get_ydata()).all()
    assert rule.get_ydata()[0] > 0


CHECKS = {
    "continue_run": continued_with_the_same_buffer,
    "lap_td3": lambda results: TD3.load("runs/lap_td3"),
    "own_algorithm": own_algorithm_has_no_actor,
    "pairs_trading": has_a_picture_of_the_learning_curves,
    "resume": learning_curve_has_both_parts,
    "swap_import": lambda results: SAC.load("runs/swap_import"),
}


@pytest.fixture
def short(tmp_path, monkeypatch):
    """Run a script with few steps in an empty folder. Scripts import modules of their own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SB3_PER_SHORT", "1")
    monkeypatch.syspath_prepend(EXAMPLES)
    evaluate = evaluation.evaluate_policy
    monkeypatch.setattr(evaluation, "evaluate_policy", lambda model, env, n_eval_episodes: evaluate(model, env, 2))
    return lambda script: runpy.run_path(str(EXAMPLES / f"{script}.py"), run_name="__main__")


def test_every_script_has_promises():
    assert sorted(PROMISES) == SCRIPTS


# The others take long, and quick tests elsewhere cover what they use.
QUICK = ("own_algorithm",)


@pytest.mark.parametrize(
    "script", [script if script in QUICK else pytest.param(script, marks=pytest.mark.slow) for script in SCRIPTS]
)
def test_examples_run_and_keep_their_promises(script, short, capsys, tmp_path):
    if script == "actors":
        pytest.importorskip("ray", reason="Ray is not installed: pip install 'sb3_per[distributed]'")
    if script == "envpool_reacher":
        pytest.importorskip("envpool", reason="EnvPool is not installed: pip install 'sb3_per[envpool]'")
    with alone_with_ray() if script == "actors" else contextlib.nullcontext():
        results = short(script)
    shown, files = PROMISES[script]
    output = capsys.readouterr().out
    for text in shown:
        assert text in output
    for name in files:
        (file,) = (tmp_path / "runs").glob(name)
        assert file.stat().st_size > 0
    CHECKS.get(script, lambda results: None)(results)


def test_scripts_with_small_networks_take_one_thread_unless_the_user_has_chosen():
    choice = 'if "OMP_NUM_THREADS" not in os.environ:\n    th.set_num_threads(1)'
    for script in SCRIPTS:
        assert script == "atari" or choice in (EXAMPLES / f"{script}.py").read_text(), script


def test_the_atari_example_says_how_to_install_what_is_missing(short, monkeypatch):
    monkeypatch.setitem(sys.modules, "ale_py", None)  # an import raises ImportError then
    with pytest.raises(SystemExit, match="pip install"):
        short("atari")
