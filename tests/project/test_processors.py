"""Tests of networks and draws pass with the instructions of older processors, and with another number of threads."""

import os
import platform
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers.project import ROOT

AVX512 = ("AVX512F", "AVX512_SKX", "AVX512_ICL", "AVX512_SPR")


def without(*features: str) -> str:
    """Leave out the features that this NumPy does not choose between: it warns when it shall switch off others."""
    return " ".join(set(features).intersection(np.show_config(mode="dicts")["SIMD Extensions"]["found"]))


# What PyTorch, oneDNN, MKL, NumPy (under its names of today and of earlier versions), OpenBLAS, XLA and numba read.
SETTINGS = {
    "without AVX": dict(
        ATEN_CPU_CAPABILITY="default",
        ONEDNN_MAX_CPU_ISA="SSE41",
        MKL_ENABLE_INSTRUCTIONS="SSE4_2",
        NPY_DISABLE_CPU_FEATURES=without("X86_V3", "X86_V4", "AVX2", "FMA3", *AVX512),
        OPENBLAS_CORETYPE="Nehalem",
        XLA_FLAGS="--xla_cpu_max_isa=SSE4_2",
        NUMBA_CPU_NAME="generic",
    ),
    "without AVX-512": dict(
        ATEN_CPU_CAPABILITY="avx2",
        ONEDNN_MAX_CPU_ISA="AVX2",
        MKL_ENABLE_INSTRUCTIONS="AVX2",
        NPY_DISABLE_CPU_FEATURES=without("X86_V4", *AVX512),
        OPENBLAS_CORETYPE="Haswell",
        XLA_FLAGS="--xla_cpu_max_isa=AVX2",
    ),
    # Threads that wait leave the cores to the others.
    "two threads": dict(OMP_NUM_THREADS="2", OMP_WAIT_POLICY="passive"),
}
# Folders whose tests compare what networks, losses and draws compute.
FOLDERS = ("algorithms", "buffers", "distributed", "sampling", "sbx")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="the settings are those of x86 processors")
@pytest.mark.parametrize("name", SETTINGS)
def test_the_tests_pass_on_other_processors(name):
    """Rounding depends on them, so only the same code with the same inputs gives the same bits."""
    folders = [str(ROOT / "tests" / folder) for folder in FOLDERS]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "-p", "no:cacheprovider", *folders]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **SETTINGS[name]}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
