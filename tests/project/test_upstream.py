"""
The test files of Stable-Baselines3 and sb3-contrib, from their source distributions, with our classes in place of theirs.

    pytest -m slow tests/project/test_upstream.py
"""

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import sb3_per

STOCK_TO_OURS = {
    **{name: f"PER{name}" for name in ("SAC", "TD3", "DDPG", "DQN", "QRDQN", "TQC", "CrossQ")},
    "ReplayBuffer": "PrioritizedReplayBuffer",
    "NStepReplayBuffer": "PrioritizedReplayBuffer",
    "DictReplayBuffer": "PrioritizedDictReplayBuffer",
    "HerReplayBuffer": "PrioritizedHerReplayBuffer",
}

FILES = {
    "stable_baselines3": (
        "buffers callbacks cnn custom_policy deterministic dict_env her identity logger n_step_replay predict run save_load "
        "sde spaces tensorboard train_eval_mode utils vec_normalize"
    ),
    "sb3_contrib": "cnn deterministic dict_env identity run save_load train_eval_mode",
}

KNOWN = {
    # SB3 warns that an unknown buffer class ignores `n_steps`. Ours uses it.
    "test_n_steps_warns_with_custom_replay_buffer_class",
    # SB3 has no n-step returns for Dict observations; here they work.
    "test_n_steps_with_dict_obs",
    # One seed, 1,500 steps and a success rate above 0.9, which stock DQN reaches with 8 of 20 seeds, and the defaults with 3:
    # "DQN @ 1" and "defaults @ 1" of study/data/bits-rates.csv
    "test_performance_her",
}


def put_ours_in_place(path: Path) -> None:
    """After the last import of the stock classes, import our classes under their names."""
    text = path.read_text()
    imports = list(re.finditer(r"^from (?:stable_baselines3|sb3_contrib)[\w.]* import (?:\([^)]*\)|[^\n]*)", text, re.M))
    names = {name for each in imports for name in re.findall(r"\w+", each[0].split("import", 1)[1])}
    ours = [f"from sb3_per import {STOCK_TO_OURS[name]} as {name}" for name in sorted(names & STOCK_TO_OURS.keys())]
    if ours:
        end = imports[-1].end()
        path.write_text("\n".join([text[:end], *ours, ""]) + text[end:])


@pytest.mark.slow
@pytest.mark.parametrize("package", FILES)
def test_upstream_tests_pass(package, tmp_path):
    requirement = f"{package}=={importlib.metadata.version(package)}"
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", requirement]
    subprocess.run(download, cwd=tmp_path, check=True)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    tests = next(tmp_path.glob("*/tests"))
    for path in tests.glob("*.py"):
        put_ours_in_place(path)
    assert all(hasattr(sb3_per, name) for name in STOCK_TO_OURS.values())

    files = [f"test_{name}.py" for name in FILES[package].split()]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", os.devnull, "-n", "2", *files]
    done = subprocess.run(command, cwd=tests, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    failed = set(re.findall(r"^(?:FAILED|ERROR) (\S+?::\S+)", done.stdout, re.M))
    unknown = [test for test in failed if re.search(r"::(\w+)", test)[1] not in KNOWN]
    if unknown:
        # Once more, alone: test_save_load_policy of sb3-contrib replaces the counters of CrossQ's batch norm by random
        # integers below 10, and fails where one of two is the same as before, in a fifth of all runs.
        for _ in range(4):
            again = subprocess.run([*command[: -len(files)], *unknown], cwd=tests, capture_output=True, text=True)
            if again.returncode == 0:
                break
        assert again.returncode == 0, done.stdout[-5000:] + again.stdout[-5000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 50
