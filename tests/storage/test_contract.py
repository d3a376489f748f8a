"""Every store of observations keeps the contract."""

from typing import Any

import numpy as np
import pytest

from sb3_per.storage.arrays import ArrayStore
from sb3_per.storage.frames import FrameStore
from sb3_per.storage.mapped import Files, Folder
from tests.buffers.test_add import PickledObservations
from tests.storage.contract import MakeStore, check_store


def make_stores(tmp_path: Any) -> dict[str, MakeStore]:
    def arrays(n_rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any) -> ArrayStore:
        full = (n_rows, n_envs, *shape)
        return ArrayStore(np.zeros(full, dtype), np.zeros(full, dtype))

    def mapped(n_rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any) -> ArrayStore:
        files, full = Files(Folder.shared(tmp_path / "mapped")), (n_rows, n_envs, *shape)
        return ArrayStore(files.array(full, dtype), files.array(full, dtype), files)

    def mapped_frames(*form: Any) -> FrameStore:
        return FrameStore(*form, 2, Files(Folder.shared(tmp_path / "frames")))

    return {
        "arrays": arrays,
        "frames": lambda *form: FrameStore(*form, 2),
        "mapped": mapped,
        "mapped frames": mapped_frames,
        "no base class": PickledObservations,
    }


@pytest.mark.parametrize("name", ["arrays", "frames", "mapped", "mapped frames", "no base class"])
def test_a_store_keeps_the_contract(name, tmp_path):
    check_store(make_stores(tmp_path)[name])


def test_the_contract_notices_a_store_that_breaks_it():
    """A store that gives views, forgets steps, or mixes up the two observations is found."""

    class Broken(ArrayStore):
        def __init__(self, n_rows: int, n_envs: int, shape: tuple[int, ...], dtype: Any):
            super().__init__(np.zeros((n_rows, n_envs, *shape), dtype), np.zeros((n_rows, n_envs, *shape), dtype))

    class Views(Broken):
        def read(self, slots: np.ndarray, is_next: bool) -> np.ndarray:
            array = self.next_observations if is_next else self.observations
            assert array is not None
            if len(slots) == array.shape[0] * array.shape[1]:
                return array.reshape(-1, *array.shape[2:])
            return super().read(slots, is_next)

    class Mixed(Broken):
        def read(self, slots: np.ndarray, is_next: bool) -> np.ndarray:
            return super().read(slots, not is_next)

    class Forgetful(Broken):
        def write(self, rows: Any, envs: np.ndarray | None, *observations: np.ndarray) -> None:
            super().write(
                rows if envs is None else rows[:1], envs, *(each if envs is None else each[:1] for each in observations)
            )

    check_store(Broken)
    for cls in (Views, Mixed, Forgetful):
        with pytest.raises(AssertionError):
            check_store(cls)
