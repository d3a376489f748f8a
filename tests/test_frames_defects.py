"""Deliberate defects in the storage of frames, each of which the comparison with a plain twin finds."""

import inspect
from typing import Any

import numpy as np
import pytest

from sb3_per.storage.frames import FrameStore
from tests.test_frames import FORMS, Stream, add, same_bytes, twins

DEFECTS = {
    "equal numbers, not bytes": ("part_a[i] ^ part_b[i]", "np.uint64(FLOATS(part_a[i]) != FLOATS(part_b[i]))"),
    "observations are not compared": ("_are_equal(observations[e].reshape(-1), last_bytes[e].reshape(-1))", "True"),
    "next observations are not compared": ("_are_equal(next_observations[e, j], observations[e, j + 1])", "True"),
    "zeros are not compared": ("if _is_zero(frame):", "if frame[0] == 0:"),
    "repeats are not compared": ("if j > 0 and _are_equal(frames[j], frames[j - 1]):", "if j > 0:"),
}


def with_defect(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """The kernels of the module again, from a source with a defect in it."""
    from sb3_per.storage import frame_kernels, frames

    source = inspect.getsource(frame_kernels)
    source = source[source.index("@kernel") :]
    assert old in source
    namespace = dict(vars(frame_kernels))
    code = source.replace(old, new).replace("FLOATS", "_as_float")
    # Compiled for this test alone, so without a cache on disk.
    import numba

    @numba.extending.intrinsic
    def _as_float(typing_context: Any, word: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(numba.float64))

        return numba.float64(word), generate

    namespace.update(kernel=numba.njit, _as_float=_as_float)
    exec(code, namespace)
    for name in ("encode", "encode_steps", "decode"):
        monkeypatch.setattr(frames, name, namespace[name])


def laps_of_a_plain_twin(dtype: Any) -> None:
    for form, k, seed in (("channels first", 3, 0), ("vector", 2, 1), ("channels last", 1, 2)):
        form = form if dtype == np.uint8 else "wide"
        framed, plain = twins(form, k, dtype, 12, 2)
        stream = Stream(form, k, dtype, 2, seed)
        for _ in range(5):
            add((framed, plain), stream, 12)
            same_bytes(framed.observations[:], plain.observations)
            same_bytes(framed.next_observations[:], plain.next_observations)


@pytest.fixture
def wide_form(monkeypatch):
    """Frames of one word."""
    monkeypatch.setitem(FORMS, "wide", ((1,), "last"))


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_without_a_defect(dtype, wide_form, monkeypatch):
    laps_of_a_plain_twin(dtype)
    with_defect(monkeypatch, "n_shifted += 1", "n_shifted += 1")  # compiled anew, as it is
    laps_of_a_plain_twin(dtype)


# Each is compiled anew: some of them when there is time.
@pytest.mark.parametrize(
    "name", [name if i % 3 == 0 else pytest.param(name, marks=pytest.mark.slow) for i, name in enumerate(DEFECTS)]
)
def test_a_defect_is_seen(name, wide_form, monkeypatch):
    with_defect(monkeypatch, *DEFECTS[name])
    with pytest.raises(AssertionError):
        laps_of_a_plain_twin(np.float64 if name.startswith("equal") else np.uint8)


def test_recycling_a_row_early_is_seen(monkeypatch):
    release, init = FrameStore._release, FrameStore.__init__

    def early(self: FrameStore, oldest_number: int) -> None:
        release(self, min(oldest_number + (1 << self._shift), self._next_number))

    def roomy(self: FrameStore, *args: Any) -> None:
        init(self, *args)
        self._addresses = np.zeros(256, np.uint64)  # never made anew: what was given back keeps its address

    monkeypatch.setattr(FrameStore, "_release", early)
    monkeypatch.setattr(FrameStore, "__init__", roomy)
    with pytest.raises(AssertionError):
        laps_of_a_plain_twin(np.uint8)


def test_sharing_zeros_by_the_done_flag_is_seen(monkeypatch):
    """What others do: behind the end of an episode, a stack is a frame and zeros."""
    begin = FrameStore.begin

    def inferring(self: FrameStore, observations: np.ndarray) -> None:
        observations = np.array(observations)
        if self._cursors[0, 1] % 7 == 0 and self.axis == 0:  # where an episode is believed to begin
            observations[:, : -(self.shape[0] // self.n_frames)] = 0
        begin(self, observations)

    monkeypatch.setattr(FrameStore, "begin", inferring)
    with pytest.raises(AssertionError):
        laps_of_a_plain_twin(np.uint8)
