"""Damaged files, and directories made to do harm."""

import errno
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
import warnings
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
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.persistence.checkpoint_callback import latest_checkpoint
from sb3_per.persistence.generations import VERSION, Manifest, manifests_in, numbers_in
from sb3_per.persistence.npz import DamagedFileError
from tests.persistence.saved import KINDS, Player, digest, make, names_of, resign, rewrite, write_signed
from tests.utils import ROOT

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were drawn")

MIB = 2**20


@functools.cache
def _saved(kind: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """A directory of three generations, by name, and the digest of each, by the name of its manifest."""
    buffer, digests = make(kind), {}
    player = Player(buffer, seed=4)
    with tempfile.TemporaryDirectory() as folder:
        for i in range(3):
            player.live([20, 3, 5][i])
            save_buffer(buffer, folder, num_timesteps=i, keep=3)
            digests[manifests_in(Path(folder))[0]] = digest(buffer)
        return {name: (Path(folder) / name).read_bytes() for name in names_of(Path(folder))}, digests


def saved(kind: str, path: Path, n_kept: int = 3) -> dict[str, str]:
    """Put the newest generations there; returns the digest of each, by the name of its manifest."""
    files, digests = _saved(kind)
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    gone = sorted(digests)[: 3 - n_kept]
    for name, data in files.items():
        if name not in gone:
            (path / name).write_bytes(data)
    return {name: found for name, found in digests.items() if name not in gone}


def assert_harmless(kind: str, path: Path, digests: dict[str, str], damaged: list[str]) -> str:
    """
    The newest generation or, with a warning that names the damage, an older one, or an error that names it; never other data.

    :param damaged: names of the files
    :return: name of the manifest, empty for an error
    """
    live = make(kind)
    Player(live, seed=1).live(5)
    before = digest(live)
    found = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = {value: name for name, value in digests.items()}[digest(load_buffer(live, path))]
        except (DamagedFileError, FileNotFoundError) as error:
            assert any(name in str(error) for name in [*damaged, path.name])
    assert digest(live) == before
    if found and found != max(digests) and os.path.exists(path / max(digests)):
        (warning,) = caught
        assert any(name in str(warning.message) for name in damaged)
        assert found in str(warning.message)
    else:
        assert not caught
    return found


# ---- chance


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
    """Flipped, truncated, emptied, longer, or gone."""
    path, found = tmp_path / "x.buffer", []
    digests = saved(kind, path)
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
def test_any_damage_is_harmless(tmp_path_factory, data):
    """Of several files at once; or two files change places, or one is another's."""
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    path = tmp_path_factory.getbasetemp() / "any.buffer"
    digests = saved(kind, path)
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


def test_a_part_of_another_buffer_is_found(tmp_path):
    """Of the same name and size, and whole: the manifest knows its own."""
    path = tmp_path / "x.buffer"
    digests = saved("plain", path)
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


def test_if_all_is_damaged_the_error_names_the_newest(tmp_path):
    saved("plain", tmp_path / "x.buffer")
    for path in (tmp_path / "x.buffer").glob("state*"):
        path.unlink()
    with pytest.raises(DamagedFileError, match=r"state-00000003\.npz is missing"):
        load_buffer(make("plain"), tmp_path / "x.buffer")
    assert latest_checkpoint(tmp_path) is None


def test_a_file_that_cannot_be_read_is_damaged(tmp_path, monkeypatch):
    """A disk that has lost it says so: that is damage like any other, and no reason to give up what is older."""
    path = tmp_path / "x.buffer"
    digests = saved("plain", path)

    def broken(file: Any, *args: Any) -> Any:
        if Path(file).name == "state-00000003.npz":
            raise OSError(errno.EIO, "Input/output error", str(file))
        return open(file, *args)

    monkeypatch.setattr(npz, "open", broken, raising=False)
    with pytest.warns(UserWarning, match=r"state-00000003\.npz is damaged: .*Input/output error"):
        assert digest(load_buffer(make("plain"), path)) == digests[manifests_in(path)[1]]


def test_damaged_generations_do_not_count(tmp_path):
    """``keep`` counts those that are whole, and the others are removed."""
    path = tmp_path / "x.buffer"
    saved("plain", path)
    buffer = load_buffer(make("plain"), path)
    (path / "state-00000002.npz").write_bytes(bytes(100))
    save_buffer(buffer, path, num_timesteps=9, keep=3)
    assert [numbers_in(name)[1] for name in manifests_in(path)] == [9, 2, 0]


def test_a_part_that_was_damaged_is_written_anew(tmp_path):
    """The buffer is in memory, and what is on disk is looked at if it has changed."""
    path = tmp_path / "x.buffer"
    digests = saved("plain", path)
    buffer = load_buffer(make("plain"), path)
    (part, *_) = Manifest.read(path / max(digests)).of_stream("rows")
    os.truncate(path / part.name, part.size - 1)
    with pytest.warns(UserWarning, match=rf"Everything is written anew: .*{part.name}"):
        save_buffer(buffer, path)
    assert digest(load_buffer(make("plain"), path)) == digest(buffer)


# ---- other versions


@pytest.mark.parametrize("version", [VERSION + 1, "1"])
def test_an_unknown_version_is_refused(version, tmp_path):
    """Both are named; neither loading nor saving does anything, for an older generation is not what was meant."""
    path = tmp_path / "rl_model_replay_buffer.buffer"
    digests = saved("plain", path)
    resign(path / max(digests), lambda content: content.update(version=version))
    names = names_of(path)
    for attempt in (lambda: load_buffer(make("plain"), path), lambda: save_buffer(make("plain"), path)):
        with pytest.raises(ValueError, match=f"has version {version} of the format, and .* reads version {VERSION}"):
            attempt()
    with pytest.raises(ValueError, match="version"):
        latest_checkpoint(tmp_path)
    assert names_of(path) == names


# ---- intent


@contextmanager
def bounded_memory(limit: int = 64 * MIB) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()


def assert_refused(kind: str, path: Path, match: str | None = None) -> None:
    """By what reads manifests and files, and by the parts of a buffer; also for a buffer of another size."""
    for n_rows in (16, 12):
        live = make(kind, n_rows)
        Player(live, seed=1).live(5)
        before = digest(live)
        # What is short in JSON can be 25 times as long in memory.
        with bounded_memory(128 * MIB), pytest.raises(DamagedFileError, match=match):
            load_buffer(live, path)
        assert digest(live) == before


def part_of(content: dict[str, Any], stream: str) -> dict[str, Any]:
    return next(part for part in content["parts"] if part["stream"] == stream)


def set_member(stream: str, member: str, **facts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: part_of(content, stream)["members"][member].update(facts)


def set_part(stream: str, **facts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: part_of(content, stream).update(facts)


FORGED_MANIFESTS: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "a name elsewhere": ("plain", set_part("rows", name="../x.npz")),
    "a shape that is too large": ("plain", set_member("rows", "actions", shape=[10**15, 2, 2])),
    "objects": ("plain", set_member("rows", "actions", dtype="|O")),
    "missing steps": ("plain", lambda content: content["parts"].remove(part_of(content, "rows"))),
    "rows without end": ("plain", lambda content: content["about"].update(buffer_size=10**12)),
    "frames without end": ("frames", set_part("frames.image", end=10**15)),
    "another name": ("plain", lambda content: content.update(generation=7)),
}


@pytest.mark.parametrize("forgery", FORGED_MANIFESTS)
def test_a_forged_manifest_is_refused(forgery, tmp_path):
    """Its checksum fits."""
    kind, change = FORGED_MANIFESTS[forgery]
    (name,) = saved(kind, tmp_path / "x.buffer", 1)
    resign(tmp_path / "x.buffer" / name, change)
    assert_refused(kind, tmp_path / "x.buffer")


def put(name: str, value: Any, index: Any = 0) -> Callable[[dict[str, np.ndarray]], None]:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


FORGED_ARRAYS: dict[str, tuple[str, str, Callable[[dict[str, np.ndarray]], Any]]] = {
    "a mass below 0": ("plain", "state", put("sampler/masses", -1.0)),
    "no masses": ("plain", "state", lambda arrays: arrays.__delitem__("sampler/masses")),
    "a rank twice": ("rank", "state", put("sampler/ranked_slots", 1, slice(2))),
    "a frame of nothing": ("frames", "rows", put("references.image", 10**6, ...)),
    "an episode that is too long": ("her", "state", put("eligible/ep_length", 2**62)),
    "steps out of order": ("sequences", "state", put("eligible/episode_steps", 7, ...)),
}


@pytest.mark.parametrize("forgery", FORGED_ARRAYS)
def test_forged_arrays_are_refused(forgery, tmp_path):
    """All checksums fit."""
    kind, stream, change = FORGED_ARRAYS[forgery]
    saved(kind, tmp_path / "x.buffer", 1)
    rewrite(tmp_path / "x.buffer", stream, change)
    assert_refused(kind, tmp_path / "x.buffer")


FORGED_INFOS = ['{"__array__": ["|O8", null, [1]]}', '{"x": ' + "[" * 10**5]


@pytest.mark.parametrize("text", FORGED_INFOS, ids=range(len(FORGED_INFOS)))
def test_forged_infos_are_refused(text, tmp_path):
    saved("her", tmp_path / "x.buffer", 1)

    def change(arrays: dict[str, np.ndarray]) -> None:
        infos = np.frombuffer(text.encode(), np.uint8)
        arrays["infos"] = np.concatenate([infos, arrays["infos"][arrays["infos_end"].flat[0] :]])
        arrays["infos_end"] = arrays["infos_end"] + len(infos) - arrays["infos_end"].flat[0]

    rewrite(tmp_path / "x.buffer", "rows", change)
    assert_refused("her", tmp_path / "x.buffer")


FORGED_TEXTS = {
    "deep": lambda: '{"format": "sb3_per.buffer", "version": 1, "about": ' + "[" * 10**5 + "]" * 10**5 + "}",
    "longer than any": lambda: "{" + " " * 4 * MIB + "}",
}


@pytest.mark.parametrize("forgery", FORGED_TEXTS)
def test_a_text_that_is_no_manifest_is_refused(forgery, tmp_path):
    (name,) = saved("plain", tmp_path / "x.buffer", 1)
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
    """A link leads elsewhere, even where the contents are right; a pipe would wait for ever."""
    saved("plain", tmp_path / "x.buffer", 1)
    for i, path in enumerate((tmp_path / "x.buffer").glob(f"{prefix}*")):
        make_other(path, tmp_path / f"elsewhere{i}")
    assert_refused("plain", tmp_path / "x.buffer", match="not a plain file")


def test_saving_follows_no_link(tmp_path):
    """Into a directory that somebody else has made."""
    path, victim = tmp_path / "x.buffer", tmp_path / "victim"
    saved("plain", path, 1)
    victim.write_text("precious")
    for name in ("state-00000004.npz.tmp", "gen-00000004-0.json.tmp"):
        (path / name).symlink_to(victim)
    buffer = make("plain")
    save_buffer(buffer, path)
    assert victim.read_text() == "precious"
    assert digest(load_buffer(make("plain"), path)) == digest(buffer)


def test_a_generation_that_could_not_be_read_is_not_written(tmp_path):
    """Its number would be too long. Nothing in the directory changes."""
    path = tmp_path / "x.buffer"
    (name,) = saved("plain", path, 1)
    (path / name).rename(path / "gen-999999999999-5.json")
    names = names_of(path)
    with pytest.raises(ValueError, match="1000000000000"):
        save_buffer(make("plain"), path)
    assert names_of(path) == names


NAN, INFINITY = float("nan"), float("inf")
NASTY: list[Any] = [None, True, -1, 0, 1, 2, 3, 10**18, 10**400, -0.5, 0.5, NAN, INFINITY]
NASTY += ["", "x", "../x", "<f4", ">f8", "|O8", [], [0], {}, {"x": 1}]
ODD = [NAN, INFINITY, -INFINITY, -1.0, 0.0, 1.0, 1e308, 7.0, 2.0**31, 2.0**62]


def places_of(content: Any) -> Iterator[tuple[Any, Any]]:
    """Of all values of a manifest: what they are in, and where."""
    for key in content if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], dict | list):
            yield from places_of(content[key])


def forge_manifest(path: Path, name: str, data: Any) -> None:
    def change(content: dict[str, Any]) -> None:
        for _ in range(data.draw(st.integers(1, 2))):
            container, key = data.draw(st.sampled_from(list(places_of(content))))
            container[key] = data.draw(st.sampled_from(NASTY))

    resign(path / name, change)


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
    rewrite(path, data.draw(st.sampled_from(streams)), change)


def forgeries(n_examples: int) -> Callable[..., Any]:
    return lambda test: settings(max_examples=n_examples, deadline=None)(given(st.data())(test))


@forgeries(60)
@pytest.mark.filterwarnings("ignore")
def test_any_forgery_is_refused_or_makes_a_buffer_that_works(tmp_path_factory, data):
    """Nothing else happens, whatever a manifest says and files hold; into a buffer of the same size, and of others."""
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    path = tmp_path_factory.getbasetemp() / "any.buffer"
    (name,) = saved(kind, path, 1)
    data.draw(st.sampled_from([forge_manifest, forge_arrays]))(path, name, data)
    with bounded_memory():
        try:
            buffer = load_buffer(make(kind, data.draw(st.sampled_from([16, 12, 24]))), path)
        except ValueError:
            return
        player = Player(buffer, seed=1)
        for _ in range(6):
            player.live(8)


# What runs code, or looks where it should not. Imports run code as well.
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
assert load_all() == int(sys.argv[2])  # what a process does but once
sys.addaudithook(hook)
assert load_all() == int(sys.argv[2])
assert not events, events
is_armed = True
pickle.loads(pickle.dumps(os.getcwd))
is_armed = False
assert any(event == "pickle.find_class" for event, _ in events), "the hook works"
print("nothing has run")
"""


def test_loading_runs_no_code(tmp_path):
    """Neither what is whole, nor what is damaged, nor what was made for it."""
    for kind in KINDS:
        saved(kind, tmp_path / f"{kind}.buffer", 1)
        path = tmp_path / f"{kind}.damaged.buffer"
        (name,) = saved(kind, path, 1)
        os.truncate(path / Manifest.read(path / name).parts[0].name, 100)
        path = tmp_path / f"{kind}.pickle.buffer"
        (name,) = saved(kind, path, 1)
        resign(path / name, functools.partial(bring_a_pickle, path))
    package = str(Path(sb3_per.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([package, str(ROOT)])}
    found = subprocess.run(
        [sys.executable, "-c", AUDITED, tmp_path, str(2 * len(KINDS))],
        env=environment,
        cwd=ROOT,
        text=True,
        capture_output=True,
    )
    assert found.stdout == "nothing has run\n", found.stderr


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def bring_a_pickle(path: Path, content: dict[str, Any]) -> None:
    """An array of objects, as NumPy would save it."""
    part = part_of(content, "rows")
    np.savez(path / part["name"], actions=np.array([Evil()], object))
    part["size"] = (path / part["name"]).stat().st_size
    part["members"] = {"actions": {"dtype": "|O", "shape": [1], "offset": 64, "n_bytes": 100, "crc32": 0}}


# ---- files of all releases

GOLDEN = json.loads(golden.EXPECTED.read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_files_of_an_older_release_are_loaded(name, tmp_path):
    """As they were saved, and what comes is added to them."""
    kind, path = name.split("-")[0], tmp_path / "x.buffer"
    shutil.copytree(golden.HERE / f"{name}.buffer", path)
    buffer = load_buffer(make(kind, 8), path)
    assert golden.contents(buffer) == GOLDEN[name]
    Player(buffer, seed=1).live(3)
    save_buffer(buffer, path)
    assert golden.contents(load_buffer(make(kind, 8), path)) == golden.contents(buffer)


def test_every_kind_has_files_of_this_version():
    assert {f"{kind}-v{VERSION}" for kind in KINDS} <= GOLDEN.keys()
