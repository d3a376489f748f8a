"""No kernel reads or writes outside of its arrays."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sb3_per.utils.compiled import kernel

ROOT = Path(__file__).resolve().parents[2]

# Tests that run all kernels: of frames, trees, ranks, windows, n-step returns and batches.
TESTED = ("tests/sampling", "tests/buffers")


@kernel
def _read(array: np.ndarray, index: int) -> float:
    return float(array[index])


@pytest.mark.skipif(os.environ.get("NUMBA_BOUNDSCHECK") != "1", reason="numba checks no bounds unless it is told to")
def test_kernels_check_their_bounds():
    """The next test relies on this."""
    with pytest.raises(IndexError):
        _read(np.zeros(3), 3)


@pytest.mark.slow
def test_kernels_stay_within_their_arrays(tmp_path):
    """Machine code on disk may be without checks, so these tests compile their own."""
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *TESTED]
    done = subprocess.run(command, env=environment, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-5000:]
