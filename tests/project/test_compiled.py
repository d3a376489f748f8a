"""Compiled kernels work in workers and without a cache folder."""

import os
import runpy
import subprocess
import sys
from typing import Any

import numba
import numpy as np
import pytest

from sb3_per import SumTree
from sb3_per.utils import compiled
from sb3_per.utils.compiled import kernel, prefetch


def run_program(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_kernels_work_without_a_cache_folder():
    program = """
import numba.core.caching
numba.core.caching.CacheImpl._locator_classes = []
try:
    numba.njit(cache=True)(lambda x: x)
except RuntimeError:
    pass
else:
    raise SystemExit("this numba caches without a locator: the test shows nothing")
from sb3_per import SumTree
from sb3_per.utils.compiled import kernel, prefetch
tree = SumTree(3)
tree.update([0, 2], [1.0, 3.0])
print(tree.find([0.5, 1.0]).tolist())
"""
    assert run_program(program).strip() == "[0, 2]"


def _draw_in_a_worker(seed: int) -> list[int]:
    tree = SumTree(100)
    tree.update(np.arange(100), np.arange(100.0))
    slots, _ = tree.draw(np.random.default_rng(seed).random(32), stratified=True, n_candidates=100)
    return slots.tolist()


@pytest.mark.slow
def test_kernels_work_in_forked_and_spawned_workers():
    import multiprocessing

    expected = [_draw_in_a_worker(seed) for seed in range(2)]
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(_draw_in_a_worker, range(2)) == expected


@pytest.mark.filterwarnings("ignore:Inspection disabled for cached code")  # numba shows it nevertheless
def test_prefetch_changes_nothing_and_never_fails():
    """Indices may be far outside of the array."""

    @kernel
    def hint(array: np.ndarray, index: np.uint64) -> None:
        prefetch(array, index)

    for dtype in (np.float32, np.float64, np.int32, np.uint64):
        array = np.arange(10, dtype=dtype)
        for index in (0, 9, 10, 10**6, 2**63):
            hint(array, np.uint64(index))
        np.testing.assert_array_equal(array, np.arange(10))
    assert any("prefetch" in code.lower() for code in hint.inspect_llvm().values())


TRAIN = """
from sb3_per import PERDQN
model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=5, batch_size=4, policy_kwargs=dict(net_arch=[4]), seed=0)
model.learn(20)
print(model.replay_buffer.masses.sum())
"""


def run_with_cache(program: str, folder: Any, **environment: str) -> tuple[str, str]:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), **environment}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
def test_training_works_without_a_writable_cache_folder(tmp_path):
    (tmp_path / "file").write_text("")
    output, _ = run_with_cache(TRAIN, tmp_path / "file" / "cache")
    assert float(output) > 0


def test_a_disabled_compiler_is_an_error_that_names_its_variable(monkeypatch):
    monkeypatch.setattr(numba.config, "DISABLE_JIT", 1)
    with pytest.raises(ImportError, match="sb3_per needs numba's compiler, which NUMBA_DISABLE_JIT=1 switches off: unset it"):
        runpy.run_path(compiled.__file__)


@pytest.mark.slow
def test_importing_an_algorithm_with_a_disabled_compiler_raises():
    done = subprocess.run(
        [sys.executable, "-c", "from sb3_per import PERSAC"],
        capture_output=True,
        text=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    assert done.returncode != 0
    assert "ImportError: sb3_per needs numba's compiler, which NUMBA_DISABLE_JIT=1 switches off: unset it" in done.stderr
