"""Damaged files, and directories that an attacker made."""

import copy
import errno
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sb3_per
import sb3_per.persistence.npz as npz
import tests.persistence.golden.make as golden
from sb3_per import PrioritizedReplayBuffer
from sb3_per.buffers.eligibility import HeldTransitions
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.persistence.checkpoint_callback import latest_checkpoint
from sb3_per.persistence.generations import VERSION, Manifest, manifests_in, numbers_in
from sb3_per.persistence.npz import DamagedFileError
from tests.persistence.saved import (
    ACTION,
    KINDS,
    Player,
    change_arrays,
    change_manifest,
    digest,
    make,
    names_of,
    write_signed,
)
from tests.utils import ROOT, caught_user_warnings, no_user_warnings

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were drawn")

MIB = 2**20
NAN, INFINITY = float("nan"), float("inf")


@functools.cache
def three_generations(kind: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the files of a directory with three generations, and each generation's digest by the name of its manifest."""
    buffer, digests = make(kind), {}
    player = Player(buffer, seed=4)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(3):
            player.play([20, 3, 5][i])
            save_buffer(buffer, folder, num_timesteps=i, keep=3)
            digests[manifests_in(Path(folder))[0]] = digest(buffer)
        return {name: (Path(folder) / name).read_bytes() for name in names_of(Path(folder))}, digests


def write_generations(kind: str, path: Path, n_kept: int = 3) -> dict[str, str]:
    """Write the newest ``n_kept`` of three generations. Return each one's digest by the name of its manifest."""
    files, digests = three_generations(kind)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    gone = sorted(digests)[: 3 - n_kept]
    for name, data in files.items():
        if name not in gone:
            (path / name).write_bytes(data)
    return {name: found for name, found in digests.items() if name not in gone}


def assert_harmless(kind: str, path: Path, digests: dict[str, str], damaged: list[str]) -> str:
    """
    Load a directory, and check that the result is the newest generation, an older one with a warning, or an error.

    The warning or the error must name a damaged file.

    :param damaged: names of the damaged files
    :return: name of the manifest that was loaded, empty after an error
    """
    current = make(kind)
    Player(current, seed=1).play(5)
    before = digest(current)
    found = ""
    with caught_user_warnings() as caught:
        try:
            found = {value: name for name, value in digests.items()}[digest(load_buffer(current, path))]
        except (DamagedFileError, FileNotFoundError) as error:
            assert any(name in str(error) for name in [*damaged, path.name])
    assert digest(current) == before
    if found and found != max(digests) and os.path.exists(path / max(digests)):
        (warning,) = caught
        assert any(name in warning for name in damaged)
        assert found in warning
    else:
        assert caught == []
    return found


# ---- random damage


def damages_of(data: bytes) -> Iterator[bytes]:
    yield b""
    yield data[: len(data) // 2]
    yield data[:-1]
    yield data + b"\0"
    yield bytes(len(data))
    for place in {0, len(data) - 1, *range(0, len(data), max(len(data) // 6, 1))}:
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        yield bytes(changed)


@pytest.mark.parametrize("kind", ["frames", pytest.param("her", marks=pytest.mark.slow), "sequences"])
def test_every_damaged_file_is_found(kind, tmp_path):
    """Each file in turn is cut, extended, emptied, zeroed, changed in one bit, removed, or replaced by a directory."""
    path, found = tmp_path / "x.buffer", []
    digests = write_generations(kind, path)
    for name in sorted(names_of(path)):
        data = (path / name).read_bytes()
        for damage in damages_of(data):
            (path / name).write_bytes(damage)
            found.append(assert_harmless(kind, path, digests, [name]))
        (path / name).unlink()
        found.append(assert_harmless(kind, path, digests, [name]))
        (path / name).mkdir()
        found.append(assert_harmless(kind, path, digests, [name]))
        (path / name).rmdir()
        (path / name).write_bytes(data)
    assert set(digests) - set(found) <= {min(digests)}
    assert assert_harmless(kind, path, digests, []) == max(digests)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_random_damage_never_loads_other_data(tmp_path_factory, data):
    """Up to three files get random bytes, or exchange their contents."""
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    path = tmp_path_factory.getbasetemp() / "any.buffer"
    digests = write_generations(kind, path)
    names = data.draw(st.lists(st.sampled_from(sorted(names_of(path))), min_size=1, max_size=3, unique=True))
    contents = [(path / name).read_bytes() for name in names]
    if data.draw(st.booleans()):
        for name, content in zip(names, contents[1:] + contents[:1], strict=True):
            (path / name).write_bytes(content)
    else:
        for name, content in zip(names, map(bytearray, contents), strict=True):
            for _ in range(data.draw(st.integers(1, 3))):
                content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
            (path / name).write_bytes(content[: data.draw(st.sampled_from([len(content)] * 3 + [len(content) // 3]))])
    assert_harmless(kind, path, digests, names)


def test_a_valid_file_with_other_values_is_found(tmp_path):
    """The file is valid and has the right name and size, but the manifest has another checksum."""
    path = tmp_path / "x.buffer"
    digests = write_generations("plain", path)
    for name in sorted(names_of(path)):
        if name.endswith("npz"):
            data = (path / name).read_bytes()
            with np.load(path / name) as archive:
                changed = {key: array + 1 if array.dtype.kind == "f" else array for key, array in archive.items()}
            with open(path / name, "wb") as file:
                npz.write_npz(file, {key: [array] for key, array in changed.items()})
            assert len(data) == (path / name).stat().st_size
            assert_harmless("plain", path, digests, [name])
            (path / name).write_bytes(data)


def test_if_all_generations_are_damaged_the_error_names_the_newest(tmp_path):
    write_generations("plain", tmp_path / "x.buffer")
    for path in (tmp_path / "x.buffer").glob("state*"):
        path.unlink()
    with pytest.raises(DamagedFileError, match=r"state-00000003\.npz is missing"):
        load_buffer(make("plain"), tmp_path / "x.buffer")
    assert latest_checkpoint(tmp_path) is None


def test_an_unreadable_file_counts_as_damaged(tmp_path, monkeypatch):
    """After an I/O error in the newest generation, an older one loads with a warning."""
    path = tmp_path / "x.buffer"
    digests = write_generations("plain", path)

    def broken(file: Any, *args: Any) -> Any:
        if Path(file).name == "state-00000003.npz":
            raise OSError(errno.EIO, "Input/output error", str(file))
        return open(file, *args)

    monkeypatch.setattr(npz, "open", broken, raising=False)
    with pytest.warns(UserWarning, match=r"state-00000003\.npz is damaged: .*Input/output error"):
        assert digest(load_buffer(make("plain"), path)) == digests[manifests_in(path)[1]]


def test_keep_counts_only_undamaged_generations(tmp_path):
    """A save removes the damaged generations."""
    path = tmp_path / "x.buffer"
    write_generations("plain", path)
    buffer = load_buffer(make("plain"), path)
    (path / "state-00000002.npz").write_bytes(bytes(100))
    save_buffer(buffer, path, num_timesteps=9, keep=3)
    assert [numbers_in(name)[1] for name in manifests_in(path)] == [9, 2, 0]


def test_a_save_writes_damaged_files_again(tmp_path):
    """
    A save notices that an earlier file has changed. The buffer is in RAM, so the save writes everything again, with a warning.
    """
    path = tmp_path / "x.buffer"
    digests = write_generations("plain", path)
    buffer = load_buffer(make("plain"), path)
    (part, *_) = Manifest.read(path / max(digests)).of_stream("rows")
    os.truncate(path / part.name, part.size - 1)
    with pytest.warns(UserWarning, match=rf"Everything is written anew: .*{part.name}"):
        save_buffer(buffer, path)
    assert digest(load_buffer(make("plain"), path)) == digest(buffer)


# ---- mistakes in a user's code


class FaultyEpisodes(HeldTransitions):
    """An eligibility that cannot be restored."""

    error: type[Exception] = AttributeError

    def load(self, state: dict[str, Any], keeps_masses: bool) -> None:
        raise self.error("missing")


class FaultyParts(PrioritizedReplayBuffer):
    """A buffer whose parts can be made once."""

    def make_parts(self, storage: Any) -> None:
        super().make_parts(storage)
        self.n_made = getattr(self, "n_made", 0) + 1
        if self.n_made > 1:
            raise FaultyEpisodes.error("missing")


class FaultyLoading(PrioritizedReplayBuffer):
    def make_parts(self, storage: Any) -> None:
        super().make_parts(storage)
        self.sampler.eligible = FaultyEpisodes(self.ring)


@pytest.mark.parametrize("error", [AttributeError, TypeError])
@pytest.mark.parametrize("cls", [FaultyParts, FaultyLoading])
def test_a_mistake_in_a_subclass_is_not_reported_as_damage(cls, error, tmp_path, monkeypatch):
    """No older generation is loaded in place of the newest one, and no warning says that a file is damaged."""
    monkeypatch.setattr(FaultyEpisodes, "error", error)
    path = tmp_path / "x.buffer"
    digests = write_generations("plain", path)
    _, space, arguments = KINDS["plain"]
    buffer = cls(32, space, ACTION, device="cpu", n_envs=2, **arguments)
    with no_user_warnings():
        with pytest.raises(error, match="missing"):
            load_buffer(buffer, path)
        with pytest.raises(error, match="missing"):
            save_buffer(buffer, path)
    assert digest(load_buffer(make("plain"), path)) == digests[max(digests)]


# ---- versions of the format


@pytest.mark.parametrize("version", [VERSION + 1, "1"])
def test_an_unknown_version_is_refused(version, tmp_path):
    """The error names both versions. Loading does not fall back to an older generation, and saving changes no file."""
    path = tmp_path / "rl_model_replay_buffer.buffer"
    digests = write_generations("plain", path)
    change_manifest(path / max(digests), lambda content: content.update(version=version))
    names = names_of(path)
    for attempt in (lambda: load_buffer(make("plain"), path), lambda: save_buffer(make("plain"), path)):
        with pytest.raises(ValueError, match=f"has version {version} of .*, .* reads version {VERSION}"):
            attempt()
    with pytest.raises(ValueError, match="version"):
        latest_checkpoint(tmp_path)
    assert names_of(path) == names


# ---- attacks


@contextmanager
def bounded_ram(limit: int = 64 * MIB) -> Iterator[None]:
    """Check that the block allocates less than ``limit`` bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def assert_refused(kind: str, path: Path, match: str | None = None) -> None:
    """Check that loading raises an error in bounded RAM, and does not change a buffer of the same or of another size."""
    for n_rows in (16, 12):
        current = make(kind, n_rows)
        Player(current, seed=1).play(5)
        before = digest(current)
        # Parsed JSON can take 25 times as much RAM as its text.
        with bounded_ram(128 * MIB), pytest.raises(DamagedFileError, match=match):
            load_buffer(current, path)
        assert digest(current) == before


def part_of(content: dict[str, Any], stream: str) -> dict[str, Any]:
    return next(part for part in content["parts"] if part["stream"] == stream)


def set_member(stream: str, member: str, **facts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: part_of(content, stream)["members"][member].update(facts)


def set_part(stream: str, **facts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: part_of(content, stream).update(facts)


FORGED_MANIFESTS: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "a file name outside the directory": ("plain", set_part("rows", name="../x.npz")),
    "a shape that is too large": ("plain", set_member("rows", "actions", shape=[10**15, 2, 2])),
    "a shape that is no list": ("rank", set_member("state", "sampler/ranked_slots", shape={})),
    "too many draws": ("plain", lambda content: content["numbers"].update({"weights/n_draws": 10**400})),
    "objects": ("plain", set_member("rows", "actions", dtype="|O")),
    "missing steps": ("plain", lambda content: content["parts"].remove(part_of(content, "rows"))),
    "too many rows": ("plain", lambda content: content["about"].update(buffer_size=10**12)),
    "too many frames": ("frames", set_part("frames.image", end=10**15)),
    "another generation number": ("plain", lambda content: content.update(generation=7)),
}


@pytest.mark.parametrize("forgery", FORGED_MANIFESTS)
def test_a_forged_manifest_is_refused(forgery, tmp_path):
    """The checksum of the manifest is correct."""
    kind, change = FORGED_MANIFESTS[forgery]
    (name,) = write_generations(kind, tmp_path / "x.buffer", 1)
    change_manifest(tmp_path / "x.buffer" / name, change)
    assert_refused(kind, tmp_path / "x.buffer")


def set_value(name: str, value: Any, index: Any = 0) -> Callable[[dict[str, np.ndarray]], None]:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def empty_environment(arrays: dict[str, np.ndarray]) -> None:
    for name in ("ring/added", "eligible/known"):
        set_value(name, 0, 1)(arrays)


FORGED_ARRAYS: dict[str, tuple[str, str, Callable[[dict[str, np.ndarray]], Any]]] = {
    "a negative mass": ("plain", "state", set_value("sampler/masses", -1.0)),
    "a negative mass of a new transition": ("actors", "state", set_value("sampler/given_masses", -INFINITY, ...)),
    "no masses": ("plain", "state", lambda arrays: arrays.__delitem__("sampler/masses")),
    "a slot with two ranks": ("rank", "state", set_value("sampler/ranked_slots", 1, slice(2))),
    "a reference to a missing frame": ("frames", "rows", set_value("references.image", 10**6, ...)),
    "an episode that is too long": ("her", "state", set_value("eligible/ep_length", 2**62)),
    "a mass of an empty slot": ("actors", "state", empty_environment),
    "an open episode that overlaps with others": ("her", "state", set_value("eligible/current_ep_start", 7)),
    "a mass of an unfinished episode": ("her", "state", set_value("eligible/ep_length", 0, ...)),
    "steps out of order": ("sequences", "state", set_value("eligible/episode_steps", 7, ...)),
}


@pytest.mark.parametrize("forgery", FORGED_ARRAYS)
def test_forged_arrays_are_refused(forgery, tmp_path):
    """All checksums are correct."""
    kind, stream, change = FORGED_ARRAYS[forgery]
    write_generations(kind, tmp_path / "x.buffer", 1)
    change_arrays(tmp_path / "x.buffer", stream, change)
    assert_refused(kind, tmp_path / "x.buffer")


FORGED_INFOS = ['{"__array__": ["|O8", null, [1]]}', '{"x": ' + "[" * 10**5]


@pytest.mark.parametrize("text", FORGED_INFOS, ids=range(len(FORGED_INFOS)))
def test_forged_infos_are_refused(text, tmp_path):
    write_generations("her", tmp_path / "x.buffer", 1)

    def change(arrays: dict[str, np.ndarray]) -> None:
        infos = np.frombuffer(text.encode(), np.uint8)
        arrays["infos"] = np.concatenate([infos, arrays["infos"][arrays["infos_end"].flat[0] :]])
        arrays["infos_end"] = arrays["infos_end"] + len(infos) - arrays["infos_end"].flat[0]

    change_arrays(tmp_path / "x.buffer", "rows", change)
    assert_refused("her", tmp_path / "x.buffer")


FORGED_TEXTS = {
    "deeply nested": lambda: '{"format": "sb3_per.buffer", "version": 1, "about": ' + "[" * 10**5 + "]" * 10**5 + "}",
    "too long": lambda: "{" + " " * 4 * MIB + "}",
}


@pytest.mark.parametrize("forgery", FORGED_TEXTS)
def test_a_manifest_with_hostile_text_is_refused(forgery, tmp_path):
    (name,) = write_generations("plain", tmp_path / "x.buffer", 1)
    write_signed(tmp_path / "x.buffer" / name, FORGED_TEXTS[forgery]())
    assert_refused("plain", tmp_path / "x.buffer")


def make_link(path: Path, target: Path) -> None:
    target.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(target)


def make_pipe(path: Path, target: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("prefix, make_other", [("gen", make_link), ("seg", make_pipe)])
def test_a_link_or_a_pipe_is_refused(prefix, make_other, tmp_path):
    """A link may lead outside the directory, even if its contents are right. Reading a pipe would wait forever."""
    write_generations("plain", tmp_path / "x.buffer", 1)
    for i, path in enumerate((tmp_path / "x.buffer").glob(f"{prefix}*")):
        make_other(path, tmp_path / f"elsewhere{i}")
    assert_refused("plain", tmp_path / "x.buffer", match="not a plain file")


def test_saving_does_not_follow_links(tmp_path):
    """An attacker could put links into a directory, so that a save would overwrite other files."""
    path, victim = tmp_path / "x.buffer", tmp_path / "victim"
    write_generations("plain", path, 1)
    victim.write_text("precious")
    for name in ("state-00000004.npz.tmp", "gen-00000004-0.json.tmp"):
        (path / name).symlink_to(victim)
    buffer = make("plain")
    save_buffer(buffer, path)
    assert victim.read_text() == "precious"
    assert digest(load_buffer(make("plain"), path)) == digest(buffer)


def test_a_generation_number_that_is_too_long_is_not_written(tmp_path):
    """A manifest with such a number could not be loaded. Nothing in the directory changes."""
    path = tmp_path / "x.buffer"
    (name,) = write_generations("plain", path, 1)
    (path / name).rename(path / "gen-999999999999-5.json")
    names = names_of(path)
    with pytest.raises(ValueError, match="1000000000000"):
        save_buffer(make("plain"), path)
    assert names_of(path) == names


NASTY: list[Any] = [None, True, -1, 0, 1, 2, 3, 10**18, 10**400, -0.5, 0.5, NAN, INFINITY]
NASTY += ["", "x", "../x", "<f4", ">f8", "|O8", [], [0], {}, {"x": 1}]
ODD = [NAN, INFINITY, -INFINITY, -1.0, 0.0, 1.0, 1e308, 7.0, 2.0**31, 2.0**62]


def places_of(content: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the place of each value of a manifest, as a container and a key or an index."""
    for key in content if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], dict | list):
            yield from places_of(content[key])


def forge_manifest(path: Path, name: str, data: Any) -> None:
    def change(content: dict[str, Any]) -> None:
        for _ in range(data.draw(st.integers(1, 2))):
            container, key = data.draw(st.sampled_from(list(places_of(content))))
            container[key] = copy.deepcopy(data.draw(st.sampled_from(NASTY)))  # the next change may be inside of it

    change_manifest(path / name, change)


def forge_arrays(path: Path, name: str, data: Any) -> None:
    def change(arrays: dict[str, np.ndarray]) -> None:
        for name in data.draw(st.lists(st.sampled_from(sorted(arrays)), min_size=1, max_size=2)):
            array = arrays[name].copy().reshape(-1)
            for _ in range(data.draw(st.integers(0, 3))):
                if array.size:
                    odd = np.array(data.draw(st.sampled_from(ODD))).astype(array.dtype)
                    array[data.draw(st.integers(0, array.size - 1))] = odd
            arrays[name] = array.reshape(arrays[name].shape)
            if data.draw(st.integers(0, 5)) == 0:
                array = arrays[name]
                arrays[name] = data.draw(st.sampled_from([array[:-1], array[None], array.astype(np.float16)]))

    streams = sorted({part.stream for part in Manifest.read(path / name).parts})
    change_arrays(path, data.draw(st.sampled_from(streams)), change)


def forgeries(n_examples: int) -> Callable[..., Any]:
    return lambda test: settings(max_examples=n_examples, deadline=None)(given(st.data())(test))


@forgeries(60)
@pytest.mark.filterwarnings("ignore")
def test_random_forgeries_are_refused_or_load_a_usable_buffer(tmp_path_factory, data):
    """Manifests and arrays get random values, with correct checksums. The loading buffer has the same or another size."""
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    path = tmp_path_factory.getbasetemp() / "any.buffer"
    (name,) = write_generations(kind, path, 1)
    data.draw(st.sampled_from([forge_manifest, forge_arrays]))(path, name, data)
    with bounded_ram():
        try:
            buffer = load_buffer(make(kind, data.draw(st.sampled_from([16, 12, 24]))), path)
        except ValueError:
            return
        player = Player(buffer, seed=1)
        for _ in range(6):
            player.play(8)


# An audit hook records every event that may run code or that opens a file outside the folder.
AUDITED = """
import os, pickle, sys
from pathlib import Path
from sb3_per.persistence.buffer_files import load_buffer
from tests.persistence.saved import make

folder, events, is_armed = Path(sys.argv[1]), [], False
FORBIDDEN = "pickle. exec compile import subprocess. os. socket. marshal. ctypes. code. shutil.".split()
HARMLESS = ("os.scandir", "os.listdir")

def hook(event, arguments):
    if is_armed and event.startswith(tuple(FORBIDDEN)) and event not in HARMLESS:
        events.append((event, repr(arguments)[:100]))
    if is_armed and event == "open" and not str(arguments[0]).startswith(str(folder)):
        events.append((event, repr(arguments[0])))

def load_all():
    global is_armed
    n_errors = 0
    for path in paths:
        buffer = make(path.name.split(".")[0])
        is_armed = True
        try:
            load_buffer(buffer, path)
        except ValueError:
            n_errors += 1
        is_armed = False
    return n_errors

paths = sorted(folder.glob("*.buffer"))
assert load_all() == int(sys.argv[2])  # imports and caches before the hook is added
sys.addaudithook(hook)
assert load_all() == int(sys.argv[2])
assert not events, events
is_armed = True
pickle.loads(pickle.dumps(os.getcwd))
is_armed = False
assert any(event == "pickle.find_class" for event, _ in events), "the hook must record a pickle"
print("no code has run")
"""


def test_loading_runs_no_code(tmp_path):
    """The directories are valid, have a truncated file, or contain a pickle."""
    for kind in KINDS:
        write_generations(kind, tmp_path / f"{kind}.buffer", 1)
        path = tmp_path / f"{kind}.damaged.buffer"
        (name,) = write_generations(kind, path, 1)
        os.truncate(path / Manifest.read(path / name).parts[0].name, 100)
        path = tmp_path / f"{kind}.pickle.buffer"
        (name,) = write_generations(kind, path, 1)
        change_manifest(path / name, functools.partial(add_a_pickle, path))
    package = str(Path(sb3_per.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([package, str(ROOT)])}
    found = subprocess.run(
        [sys.executable, "-c", AUDITED, tmp_path, str(2 * len(KINDS))],
        env=environment,
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    assert found.stdout == "no code has run\n", found.stderr


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def add_a_pickle(path: Path, content: dict[str, Any]) -> None:
    """Replace a file by a pickled array of objects, as NumPy would save it."""
    part = part_of(content, "rows")
    np.savez(path / part["name"], actions=np.array([Evil()], object))
    part["size"] = (path / part["name"]).stat().st_size
    part["members"] = {"actions": {"dtype": "|O", "shape": [1], "offset": 64, "n_bytes": 100, "crc32": 0}}


# ---- files of older releases

GOLDEN = json.loads(golden.EXPECTED.read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_files_of_an_older_release_are_loaded(name, tmp_path):
    """The loaded contents are as expected, and a new save adds to the old files."""
    kind, path = name.split("-")[0], tmp_path / "x.buffer"
    shutil.copytree(golden.HERE / f"{name}.buffer", path)
    buffer = load_buffer(make(kind, 8), path)
    assert golden.contents(buffer) == GOLDEN[name]
    Player(buffer, seed=1).play(3)
    save_buffer(buffer, path)
    assert golden.contents(load_buffer(make(kind, 8), path)) == golden.contents(buffer)


def test_every_kind_has_golden_files_of_this_version():
    assert {f"{kind}-v{VERSION}" for kind in KINDS} <= GOLDEN.keys()
