"""The folder of the project, and what belongs to no single part of it."""

import contextlib
import fcntl
import importlib
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def alone_with_ray() -> Iterator[None]:
    """Let only one test process use Ray at a time: tests that start Ray and kill its processes disturb each other."""
    with open(Path(tempfile.gettempdir(), "sb3_per_tests_with_ray"), "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def benchmark(name: str) -> ModuleType:
    """Import a script of ``benchmarks/`` as a module; the folder is on the path because the scripts import each other."""
    folder = str(ROOT / "benchmarks")
    if folder not in sys.path:
        sys.path.append(folder)
    return importlib.import_module(name)
