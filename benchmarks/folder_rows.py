"""
Measure buffers in the files of a folder: against RAM while the files are cached, and the cost of a batch that is not in RAM.

    python benchmarks/folder_rows.py            # the table of docs/benchmarks/folder.md
    python benchmarks/folder_rows.py --quick    # small buffers, to try it
"""

import ctypes
import functools
import itertools
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from frame_rows import ACTIONS, IMAGES, steps
from targets import target_of
from timing import MILLION, add_again, box, compare, sample_and_update, seconds

from sb3_per import PrioritizedReplayBuffer
from sb3_per.storage import mapped

_MADVISE = ctypes.CDLL(None).madvise
_MADVISE.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def _vectors() -> Iterator[tuple[Any, ...]]:
    arrays = np.random.default_rng(0).normal(size=(65, 1, 17)).astype(np.float32)
    for t in itertools.cycle(range(64)):
        yield arrays[t], arrays[t + 1], np.zeros((1, 6)), np.zeros(1), np.zeros(1), [{}]


# By name: observations, actions, settings, steps, number of transitions, batch size
FORMS: dict[str, tuple[Any, Any, dict[str, Any], Callable[[], Iterator[Any]], int, int]] = {
    "obs 17, act 6": (box(17), box(6), {}, _vectors, MILLION // 2, 256),
    "images": (IMAGES, ACTIONS, {}, lambda: steps(1), 30_000, 32),
    "frames": (IMAGES, ACTIONS, dict(frames=4), lambda: steps(1), 100_000, 32),
}


def _drop_cache(buffer: PrioritizedReplayBuffer) -> int:
    """Write all files of a buffer to the disk and drop them from RAM. Return their size in bytes."""
    arrays = [array for array, _ in buffer.storage.files._arrays]
    arrays += [piece for store in buffer.storage.frame_stores.values() for piece in store.pool._pieces]
    for array in arrays:  # each begins with its file
        _MADVISE(array.ctypes.data, array.nbytes, mmap.MADV_DONTNEED)
    n_bytes = 0
    for path in buffer.storage.folder.path.glob("*.mapped"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
        n_bytes += path.stat().st_size
    return n_bytes


def main(quick: bool) -> None:
    """Measure add and sample, and the first batches after the cache was dropped. Print them as Markdown."""
    print(
        "| transitions | on disk | batch | add | sample | cached | nothing cached | a tenth read before |\n",
        "|---" * 8,
        "|",
        sep="",
    )
    for name, (observations, actions, settings, make_steps, size, batch_size) in FORMS.items():
        size, recorded = min(size, 2_000) if quick else size, list(itertools.islice(make_steps(), 200))
        with tempfile.TemporaryDirectory(dir=Path.home()) as folder:
            made = functools.partial(PrioritizedReplayBuffer, size, observations, actions, "cpu", **settings)
            buffers = made(storage_folder=str(Path(folder, "transitions"))), made()
            for step in itertools.islice(make_steps(), size + 200):
                for buffer in buffers:
                    buffer.add(*step)
            add = compare("", "", *(add_again(each, recorded) for each in buffers), 400, 25)
            run, in_ram = (sample_and_update(each, batch_size) for each in buffers)
            sample, cold, partly = compare("", "", run, in_ram, 100, 25), [], []
            with mock.patch.object(mapped, "RAM_BYTES", 0):  # as on a machine that is too small for them
                for _ in range(5):
                    n_bytes = _drop_cache(buffers[0])
                    cold.append(seconds(run, 1))
                    _drop_cache(buffers[0])
                    for slots in np.array_split(np.random.default_rng(0).permutation(size)[: size // 10], 100):
                        buffers[0].storage.read(slots, slots)
                    partly.append(seconds(run, 5))
            ratios = (
                f"{each.figure:.2f}" + " **missed**" * (each.figure > target_of("folder", key))
                for key, each in {"add": add, "sample": sample}.items()
            )
            times = (f"{1e3 * each:.2f} ms" for each in (sample.ours, np.median(cold), np.median(partly)))
            cells = (f"{size:,}, {name}", f"{n_bytes / 1e9:.2f} GB", str(batch_size), *ratios, *times)
            print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main("--quick" in sys.argv)
