"""Buffers on disk: files that are damaged, and directories that somebody has made to do harm."""

import errno
import functools
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sb3_per
import sb3_per.persistence.buffer_files as buffer_files
import sb3_per.persistence.npz as npz
import tests.persistence.golden.make as golden
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.persistence.checkpoint_callback import latest_checkpoint
from sb3_per.persistence.generations import VERSION, Directory, Manifest, UnknownVersionError, num_timesteps_of
from sb3_per.persistence.npz import DamagedFileError
from tests.persistence.saved import KINDS, Player, digest, make, names_of, resign, rewrite, write_signed
from tests.utils import ROOT

MIB = 2**20


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Callable[[str], tuple[Path, dict[str, str]]]:
    """Of a kind: a directory of three generations, not to be changed, and the digest of each, by the name of its manifest."""
    made: dict[str, tuple[Path, dict[str, str]]] = {}

    def of_kind(kind: str) -> tuple[Path, dict[str, str]]:
        if kind not in made:
            path = tmp_path_factory.mktemp("saved") / f"{kind}.buffer"
            buffer, digests = make(kind), {}
            player = Player(buffer, 4)
            for i in range(3):
                player.live([20, 3, 5][i])
                save_buffer(buffer, path, num_timesteps=i, keep=3)
                digests[Directory(path).manifests()[0]] = digest(buffer)
            made[kind] = path, digests
        return made[kind]

    return of_kind


def copied(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def assert_harmless(kind: str, path: Path, digests: dict[str, str], damaged: list[str]) -> str:
    """
    The newest generation or, with a warning that names the damage, an older one, or an error that names it; never other data.

    :param damaged: names of the files
    :return: name of the manifest, empty for an error
    """
    live = make(kind)
    Player(live, 1).live(5)
    before = digest(live)
    found = ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = {value: name for name, value in digests.items()}[digest(load_buffer(live, path))]
        except (DamagedFileError, UnknownVersionError, FileNotFoundError) as error:
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
    for place in {0, len(data) - 1, *range(0, len(data), max(len(data) // 12, 1))}:
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        yield bytes(changed)


@pytest.mark.parametrize("kind", KINDS)
def test_every_file_damaged(saved, kind, tmp_path):
    """Flipped, truncated, emptied, longer, or gone."""
    source, digests = saved(kind)
    path = copied(source, tmp_path / "x.buffer")
    found = []
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


@settings(max_examples=100)
@given(st.data())
def test_any_damage(saved, tmp_path_factory, data):
    """Of several files at once."""
    kind = data.draw(st.sampled_from(KINDS))
    source, digests = saved(kind)
    path = copied(source, tmp_path_factory.getbasetemp() / "any.buffer")
    names = data.draw(st.lists(st.sampled_from(sorted(names_of(source))), min_size=1, max_size=3, unique=True))
    for name in names:
        content = bytearray((path / name).read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        (path / name).write_bytes(content[: data.draw(st.sampled_from([len(content)] * 3 + [len(content) // 3]))])
    assert_harmless(kind, path, digests, names)


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_have_changed_places(saved, kind, tmp_path):
    source, digests = saved(kind)
    for first, second in itertools.combinations(sorted(names_of(source)), 2):
        if first[:3] == second[:3]:
            path = copied(source, tmp_path / "x.buffer")
            (path / first).rename(path / "other")
            (path / second).rename(path / first)
            (path / "other").rename(path / second)
            found = assert_harmless(kind, path, digests, [first, second])
            if "gen-" in first and max(digests) in (first, second):
                assert found != max(digests)


@pytest.mark.parametrize("kind", KINDS)
def test_generation_of_another_buffer(saved, kind, tmp_path):
    """Parts of the same names and sizes, all whole, of which some are another's: the manifest knows its own."""
    source, digests = saved(kind)
    path, other = copied(source, tmp_path / "x.buffer"), copied(source, tmp_path / "other.buffer")
    names = [name for name in sorted(names_of(source)) if name.endswith("npz")]
    for name in names:
        data = bytearray((other / name).read_bytes())
        with np.load(other / name) as archive:
            changed = {key: array + 1 if array.dtype.kind == "f" else array for key, array in archive.items()}
        np.savez(other / "changed.npz", **changed)
        (path / name).write_bytes((other / "changed.npz").read_bytes()[: len(data)])
        assert_harmless(kind, path, digests, [name])
        (path / name).write_bytes(data)


def test_all_damaged(saved, tmp_path):
    """The error names the damage of the newest."""
    path = copied(saved("plain")[0], tmp_path / "x.buffer")
    for name in names_of(path):
        if name.startswith("state"):
            (path / name).unlink()
    with pytest.raises(DamagedFileError, match=r"state-00000003\.npz is missing"):
        load_buffer(make("plain"), path)
    assert latest_checkpoint(tmp_path) is None


def test_file_that_cannot_be_read(saved, tmp_path, monkeypatch):
    """A disk that has lost it says so: that is damage like any other, and no reason to give up what is older."""
    source, digests = saved("plain")
    path = copied(source, tmp_path / "x.buffer")

    def broken(file: Any, *args: Any) -> Any:
        if Path(file).name == "state-00000003.npz":
            raise OSError(errno.EIO, "Input/output error", str(file))
        return open(file, *args)

    monkeypatch.setattr(npz, "open", broken, raising=False)
    with pytest.warns(UserWarning, match=r"state-00000003\.npz is damaged: .*Input/output error"):
        assert digest(load_buffer(make("plain"), path)) == digests[Directory(path).manifests()[1]]


def test_damaged_generations_do_not_count(saved, tmp_path):
    """``keep`` counts those that are whole, and the others are removed."""
    path = copied(saved("plain")[0], tmp_path / "x.buffer")
    buffer = load_buffer(make("plain"), path)
    (path / "state-00000002.npz").write_bytes(bytes(100))
    save_buffer(buffer, path, num_timesteps=9, keep=3)
    assert [num_timesteps_of(name) for name in Directory(path).manifests()] == [9, 2, 0]


def test_part_that_was_damaged_is_written_anew(saved, tmp_path):
    """The buffer is in memory, and what is on disk is looked at if it has changed."""
    source, digests = saved("plain")
    path = copied(source, tmp_path / "x.buffer")
    buffer = load_buffer(make("plain"), path)
    (part, *_) = Manifest.read(path / max(digests)).of_stream("rows")
    (path / part.name).write_bytes(bytes(part.size))
    with pytest.warns(UserWarning, match=rf"All is written anew: .*{part.name}"):
        save_buffer(buffer, path)
    assert digest(load_buffer(make("plain"), path)) == digest(buffer)


# ---- other versions


@pytest.mark.parametrize("version", [2, 0, "1", None, 10**30])
def test_unknown_version(saved, version, tmp_path):
    """Both are named; neither loading nor saving does anything, for an older generation is not what was meant."""
    source, digests = saved("plain")
    path = copied(source, tmp_path / "rl_model_replay_buffer.buffer")
    resign(path / max(digests), lambda content: content.update(version=version))
    names = names_of(path)
    for attempt in (lambda: load_buffer(make("plain"), path), lambda: save_buffer(make("plain"), path)):
        with pytest.raises(ValueError, match=f"has version {version} of the format, and .* reads version 1"):
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


@functools.cache
def files_of(kind: str) -> dict[str, bytes]:
    """Of a directory with one generation."""
    buffer = make(kind)
    Player(buffer, 2).live(12)
    with tempfile.TemporaryDirectory() as folder:
        save_buffer(buffer, folder, num_timesteps=5)
        return {name: (Path(folder) / name).read_bytes() for name in names_of(Path(folder))}


def one_generation(kind: str, path: Path) -> str:
    """A directory with one generation; returns the name of its manifest."""
    path.mkdir()
    for name, data in files_of(kind).items():
        (path / name).write_bytes(data)
    return Directory(path).manifests()[0]


def assert_refused(kind: str, path: Path, limit: int = 64 * MIB, match: str | None = None) -> None:
    live = make(kind)
    Player(live, 1).live(5)
    before = digest(live)
    with bounded_memory(limit), pytest.raises(DamagedFileError, match=match):
        load_buffer(live, path)
    assert digest(live) == before


def part_of(content: dict[str, Any], stream: str) -> dict[str, Any]:
    return next(part for part in content["parts"] if part["stream"] == stream)


def set_member(stream: str, member: str, **facts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: part_of(content, stream)["members"][member].update(facts)


def set_part(stream: str, **facts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: part_of(content, stream).update(facts)


def set_number(**numbers: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["numbers"].update(numbers)


NAN, INFINITY = float("nan"), float("inf")
NO_NUMBERS = [None, "x", [], {}, NAN, -INFINITY]
NO_COUNTS = [*NO_NUMBERS, -1, 10**400, 0.5]

HOSTILE_MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{
        f"name {name}": set_part("rows", name=name)
        for name in ["../x.npz", "/etc/passwd", "", "x", None, 5, "seg-0\0-1-2.npz"]
    },
    **{
        f"shape {shape}": set_member("rows", "actions", shape=shape)
        for shape in [[10**18, 2, 2], [10**9] * 7, [-1], "12", None, 5]
    },
    **{
        f"state {shape}": set_member("state", "masses", shape=shape)
        for shape in [[10**18, 2], [0], [1] * 70, [0, 10**18, 10**18]]
    },
    **{
        f"dtype {dtype}": set_member("rows", "actions", dtype=dtype)
        for dtype in ["|O8", "O", "<U9", "|V16", "<f3", "f4,f4", None, 4]
    },
    **{f"offset {offset}": set_member("rows", "actions", offset=offset) for offset in [-1, 10**18, None, 1.5]},
    **{f"header {n}": set_member("rows", "actions", n_header=n) for n in [-1, 10**18, None]},
    **{f"crc {n}": set_member("rows", "actions", crc32=n) for n in [-1, 0, None, 2**40]},
    **{f"size {size}": set_part("rows", size=size) for size in [-1, 0, 10**18, None, NAN]},
    **{f"first {first}": set_part("rows", first=first) for first in [-1, 5, 10**30, None, 0.0, "0"]},
    **{f"end {end}": set_part("rows", end=end) for end in [-1, 5, 10**30, None, NAN, "12"]},
    **{f"state end {end}": set_part("state", end=end) for end in [-1, 5, 10**17, 10**30]},
    **{f"n_before_ring {n}": set_number(n_before_ring=n) for n in [*NO_NUMBERS, -1, 1, 16, 10**400]},
    **{f"n_updates {n}": set_number(n_updates=n) for n in NO_COUNTS},
    **{f"n_sampled {n}": set_number(n_sampled=n) for n in NO_COUNTS},
    **{f"n_admitted {n}": set_number(n_admitted=n) for n in [None, "x", [], NAN, INFINITY]},
    **{f"max_priority {n}": set_number(max_priority=n) for n in [*NO_NUMBERS, 0, -1, 10**400]},
    **{f"beta {n}": set_number(beta=n) for n in [*NO_NUMBERS, -1, 2]},
    **{f"mass_of_max {n}": set_number(mass_of_max=n) for n in ["x", [1], 5, [None, None]]},
    **{f"buffer_size {n}": (lambda content, n=n: content["about"].update(buffer_size=n)) for n in [*NO_NUMBERS, 0, -1, 5]},
    **{
        f"frames {n}": (lambda content, n=n: content["about"].update(frames=n))
        for n in [None, 5, ["x"], [{"key": [], "n_frames": 1}]]
    },
    **{
        f"no {name}": (lambda content, name=name: content.pop(name) and None)
        for name in ["parts", "about", "numbers", "format"]
    },
    **{
        f"odd {name}": (lambda content, name=name: content.update({name: [1]}))
        for name in ["parts", "about", "numbers", "format"]
    },
    "unknown": lambda content: content.update(code="import os"),
    "unknown in a part": set_part("rows", code="import os"),
    "no state": lambda content: content["parts"].pop(),
    "two states": lambda content: content["parts"].append(content["parts"][-1]),
    "no rows": lambda content: content["parts"].pop(0) and None,
    "rows twice": lambda content: content["parts"].insert(0, content["parts"][0]),
    "state as rows": lambda content: content["parts"][0].update(name=content["parts"][-1]["name"]),
    "no members": set_part("rows", members={}),
    "members in a list": set_part("rows", members=[1]),
    "a list": lambda content: [content],
    "generation": lambda content: content.update(generation=2),
    "generation in words": lambda content: content.update(generation="1"),
    "steps": lambda content: content.update(num_timesteps=-5),
}


@pytest.mark.parametrize("attack", HOSTILE_MANIFESTS)
def test_hostile_manifest(attack, tmp_path):
    """Its checksum fits."""
    name = one_generation("plain", tmp_path / "x.buffer")
    resign(tmp_path / "x.buffer" / name, HOSTILE_MANIFESTS[attack])
    assert_refused("plain", tmp_path / "x.buffer")


def in_frames(n_frames: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["about"]["frames"][0].update(n_frames=n_frames)


HOSTILE_FRAMES: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{f"n_frames {n}": in_frames(n) for n in [0, -3, 10**18, None, "x", NAN, 2]},
    **{f"first {n}": set_part("frames.image", first=n) for n in [-1, 10**17, 3]},
    **{f"end {n}": set_part("frames.image", end=n) for n in [1, 10**17, 2**32]},
    **{f"shape {n}": set_member("frames.image", "frames", shape=n) for n in [[10**18, 1, 4, 4], [3], [0, 1, 4, 4]]},
    "no frames": lambda content: content["parts"].remove(part_of(content, "frames.image")),
}


@pytest.mark.parametrize("attack", HOSTILE_FRAMES)
def test_hostile_frames(attack, tmp_path):
    name = one_generation("frames", tmp_path / "x.buffer")
    resign(tmp_path / "x.buffer" / name, HOSTILE_FRAMES[attack])
    assert_refused("frames", tmp_path / "x.buffer")


def set_items(name: str, value: Any, index: Any = 0) -> Callable[[dict[str, np.ndarray]], None]:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


def set_array(name: str, array: Any) -> Callable[[dict[str, np.ndarray]], None]:
    return lambda arrays: arrays.update({name: np.asarray(array)})


def reshaped(name: str) -> dict[str, Callable[[dict[str, np.ndarray]], None]]:
    """Of any array: another shape, or another type."""
    return {
        f"{name} is shorter": lambda arrays: arrays.update({name: arrays[name][:-1]}),
        f"{name} is longer": lambda arrays: arrays.update({name: np.concatenate([arrays[name], arrays[name][-1:]])}),
        f"{name} has an axis more": lambda arrays: arrays.update({name: arrays[name][..., None]}),
        f"{name} is a number": lambda arrays: arrays.update({name: arrays[name].reshape(-1)[0]}),
        f"{name} is of another type": lambda arrays: arrays.update({name: arrays[name] > 0}),
        f"{name} is not there": lambda arrays: arrays.__delitem__(name),
    }


HOSTILE_ARRAYS: dict[str, tuple[str, str, Callable[[dict[str, np.ndarray]], Any]]] = {
    **{
        f"{kind}: {what}": (kind, stream, change)
        for kind, stream, name in [
            ("plain", "state", "masses"),
            ("plain", "state", "rewards"),
            ("plain", "state", "dones"),
            ("plain", "rows", "actions"),
            ("plain", "rows", "observations"),
            ("memory", "state", "newest_next_observations"),
            ("rank", "state", "ranked_transitions"),
            ("rank", "state", "ranked_priorities"),
            ("frames", "rows", "references.image"),
            ("frames", "frames.image", "frames"),
            ("her", "state", "steps_since_start"),
            ("her", "state", "steps_under_way"),
            ("her", "state", "ep_length"),
            ("her", "rows", "infos_end"),
        ]
        for what, change in reshaped(name).items()
    },
    **{f"mass {n}": ("plain", "state", set_items("masses", n)) for n in [NAN, INFINITY, -1.0]},
    "masses without a sum": ("plain", "state", set_items("masses", 1e308, slice(None))),
    "rank twice": ("rank", "state", set_items("ranked_transitions", 1, slice(2))),
    **{f"rank of {n}": ("rank", "state", set_items("ranked_transitions", n)) for n in [-1, 24, 10**12]},
    **{f"ranked {n}": ("rank", "state", set_items("ranked_priorities", n)) for n in [NAN, -1.0, 0.0]},
    "ranks out of order": ("rank", "state", lambda arrays: arrays.update(ranked_priorities=arrays["ranked_priorities"][::-1])),
    **{f"reference {n}": ("frames", "rows", set_items("references.image", n)) for n in [10**6, 2**32 - 2]},
    **{f"episode of {n}": ("her", "state", set_items("ep_length", n)) for n in [-1, 17, 2**62]},
    **{f"step {n}": ("her", "state", set_items("steps_since_start", n)) for n in [-1, 2**31 - 1]},
    **{f"lengths {n}": ("her", "state", set_array("finished_lengths", n)) for n in [[-1, 1], [10**18], [5, 5]]},
    "no info": ("her", "rows", set_items("infos", ord("["))),
    "ends of infos": ("her", "rows", set_items("infos_end", -5)),
    "large array": ("plain", "state", set_array("given_ids", np.zeros(10**6, np.int64))),
}


@pytest.mark.parametrize("attack", HOSTILE_ARRAYS)
def test_hostile_arrays(attack, tmp_path):
    kind, stream, change = HOSTILE_ARRAYS[attack]
    one_generation(kind, tmp_path / "x.buffer")
    rewrite(tmp_path / "x.buffer", stream, change)
    assert_refused(kind, tmp_path / "x.buffer")


NASTY: list[Any] = [None, True, -1, 0, 1, 2, 3, 10**18, 10**400, -0.5, 0.5, NAN, INFINITY, "", "x", "../x", "<f4", "|O8"]
NASTY += [[], [0], {}, {"x": 1}]


def places_of(content: Any) -> Iterator[tuple[Any, Any]]:
    """Of all values of a manifest: what they are in, and where."""
    for key in content if isinstance(content, dict) else range(len(content)):
        yield content, key
        if isinstance(content[key], dict | list):
            yield from places_of(content[key])


@settings(max_examples=100)
@given(st.data())
def test_any_manifest(saved, tmp_path_factory, data):
    """It is refused, or it makes a buffer that works: nothing else happens, whatever a manifest says."""
    kind = data.draw(st.sampled_from(KINDS))
    source, digests = saved(kind)
    path = copied(source, tmp_path_factory.getbasetemp() / "any.buffer")

    def change(content: dict[str, Any]) -> None:
        for _ in range(data.draw(st.integers(1, 2))):
            container, key = data.draw(st.sampled_from(list(places_of(content))))
            container[key] = data.draw(st.sampled_from(NASTY))

    resign(path / max(digests), change)
    for name in digests.keys() - {max(digests)}:
        (path / name).unlink()
    with bounded_memory(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            buffer = load_buffer(make(kind), path)
        except ValueError:
            return
        assert_works(kind, buffer)


def assert_works(kind: str, buffer: Any) -> None:
    player = Player(buffer, 1)
    for _ in range(20):
        player.live(3)
        if kind != "her" or buffer.ep_length.any():
            if kind == "her":
                buffer.her_ratio = 0.0  # there is no environment that knows rewards
            buffer.sample(8)


ODD = [NAN, INFINITY, -INFINITY, -1.0, 0.0, 1.0, 1e308, 7.0, 2.0**31, 2.0**62]


@pytest.mark.slow
@settings(max_examples=100)
@given(st.data())
@pytest.mark.filterwarnings("ignore")
def test_any_arrays(saved, tmp_path_factory, data):
    """The same of what the files hold."""
    kind = data.draw(st.sampled_from(KINDS))
    source, digests = saved(kind)
    path = copied(source, tmp_path_factory.getbasetemp() / "any.buffer")
    for name in digests.keys() - {max(digests)}:
        (path / name).unlink()
    streams = sorted({part.stream for part in Manifest.read(path / max(digests)).parts})

    def change(arrays: dict[str, np.ndarray]) -> None:
        for name in data.draw(st.lists(st.sampled_from(sorted(arrays)), min_size=1, max_size=2)):
            array = arrays[name].copy().reshape(-1)
            for _ in range(data.draw(st.integers(0, 3))):
                if array.size:
                    odd = np.array(data.draw(st.sampled_from(ODD))).astype(array.dtype)
                    array[data.draw(st.integers(0, array.size - 1))] = odd
            arrays[name] = array.reshape(arrays[name].shape)
            if data.draw(st.integers(0, 5)) == 0:
                arrays[name] = data.draw(st.sampled_from([arrays[name][:-1], arrays[name][None], arrays[name].astype(">f8")]))

    rewrite(path, data.draw(st.sampled_from(streams)), change)
    with bounded_memory():
        try:
            buffer = load_buffer(make(kind), path)
        except ValueError:
            return
        assert_works(kind, buffer)


def deep(n: int) -> str:
    return "[" * n + "]" * n


HOSTILE_TEXTS = {
    "deep": lambda: '{"format": "sb3_per.buffer", "version": 1, "about": ' + deep(10**5) + "}",
    "deep, and short enough for Python": lambda: '{"observation_space": ' + deep(900) + "}",
    "lists": lambda: '{"about": [' + ",".join(["[]"] * (4 * MIB // 3 - 100)) + "]}",
    "dictionaries": lambda: '{"about": [' + ",".join(["{}"] * (4 * MIB // 3 - 100)) + "]}",
    "a long number": lambda: '{"about": ' + "9" * 10**6 + "}",
    "no JSON": lambda: "{pickle",
    "nothing": lambda: "{",
    "bytes": lambda: "{\xff\0",
}


@pytest.mark.parametrize("attack", [pytest.param(a, marks=pytest.mark.slow) if a == "lists" else a for a in HOSTILE_TEXTS])
def test_hostile_text(attack, tmp_path):
    name = one_generation("plain", tmp_path / "x.buffer")
    text = HOSTILE_TEXTS[attack]()
    if attack.startswith("deep, "):
        found = json.loads(text)
        resign(tmp_path / "x.buffer" / name, lambda content: content["about"].update(found))
        with bounded_memory(), pytest.raises(ValueError):
            load_buffer(make("plain"), tmp_path / "x.buffer")
        return
    write_signed(tmp_path / "x.buffer" / name, text)
    # What is short in JSON can be 25 times as long in memory.
    assert_refused("plain", tmp_path / "x.buffer", limit=128 * MIB)


def test_manifest_without_end(tmp_path):
    """A file with holes takes no room on the disk."""
    name = one_generation("plain", tmp_path / "x.buffer")
    os.truncate(tmp_path / "x.buffer" / name, 2**40)
    assert_refused("plain", tmp_path / "x.buffer", match="no manifest has more than")


def test_part_without_end(tmp_path):
    """Nor do parts, of the size that the manifest says."""
    name = one_generation("plain", tmp_path / "x.buffer")

    def change(content: dict[str, Any]) -> None:
        part = part_of(content, "state")
        os.truncate(tmp_path / "x.buffer" / part["name"], 2**40)
        part["size"] = 2**40
        part["members"]["given_ids"] = {**part["members"]["masses"], "dtype": "<i8", "shape": [2**36]}

    resign(tmp_path / "x.buffer" / name, change)
    assert_refused("plain", tmp_path / "x.buffer")


def test_observation_that_is_larger_than_all_else(tmp_path, monkeypatch):
    """No reason to take it for an attack."""
    monkeypatch.setattr(buffer_files, "_SMALL_BYTES", 0)
    monkeypatch.setattr(buffer_files, "_MAX_BYTES_OF_TRANSITION", 8)
    buffer = make("memory")
    Player(buffer, 0).live(1)
    save_buffer(buffer, tmp_path / "x.buffer")
    assert digest(load_buffer(make("memory"), tmp_path / "x.buffer")) == digest(buffer)


def test_bomb(tmp_path):
    """Deflated zeros: nothing is unpacked."""
    path = tmp_path / "x.buffer"
    name = one_generation("plain", path)

    def change(content: dict[str, Any]) -> None:
        part = part_of(content, "rows")
        header = (path / part["name"]).read_bytes()[:256]
        with zipfile.ZipFile(path / part["name"], "w", zipfile.ZIP_DEFLATED) as archive:
            for member in part["members"]:
                with archive.open(f"{member}.npy", "w", force_zip64=True) as file:
                    file.write(header)
                    for _ in range(256):
                        file.write(bytes(MIB))
        part["size"] = (path / part["name"]).stat().st_size
        assert part["size"] < 2 * MIB

    resign(path / name, change)
    assert_refused("plain", path)


def make_link(path: Path, target: Path) -> None:
    target.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(target)


def make_pipe(path: Path, target: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_loop(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(path)


@pytest.mark.parametrize("make_other", [make_link, make_pipe, make_loop])
@pytest.mark.parametrize("prefix", ["gen", "seg", "state"])
def test_no_plain_file(prefix, make_other, tmp_path):
    """A link leads elsewhere, even where the contents are right; a pipe would wait for ever."""
    one_generation("plain", tmp_path / "x.buffer")
    (path,) = (tmp_path / "x.buffer").glob(f"{prefix}*")
    make_other(path, tmp_path / "elsewhere")
    assert_refused("plain", tmp_path / "x.buffer", match="no plain file")


def test_saving_follows_no_link(tmp_path):
    """Into a directory that somebody else has made."""
    path, victim = tmp_path / "x.buffer", tmp_path / "victim"
    buffer = make("plain")
    one_generation("plain", path)
    victim.write_text("precious")
    for name in ("state-00000002.npz.tmp", "gen-00000002-0.json.tmp"):
        (path / name).symlink_to(victim)
    save_buffer(buffer, path)
    assert victim.read_text() == "precious"
    assert digest(load_buffer(make("plain"), path)) == digest(buffer)
    (path / ".lock").unlink()
    (path / ".lock").symlink_to(tmp_path / "new")
    with pytest.raises(OSError):
        save_buffer(buffer, path)
    assert not (tmp_path / "new").exists()
    (path / ".lock").unlink()
    os.mkfifo(path / ".lock")
    with pytest.raises(OSError):
        save_buffer(buffer, path)


def test_generation_without_a_successor(tmp_path):
    """There is no number behind it that a name has room for: it is said, before something cannot be found again."""
    path = tmp_path / "x.buffer"
    name = one_generation("plain", path)
    (path / name).rename(path / "gen-999999999999-5.json")
    names = names_of(path)
    with pytest.raises(ValueError, match="no name of a manifest"):
        save_buffer(make("plain"), path)
    assert names_of(path) == names


HOSTILE_INFOS = [
    '{"__array__": ["|O8", null, [1]]}',
    '{"__array__": ["<U1000000000", null, ["x"]]}',
    '{"__array__": ["|S1000000000", [1], ["x"]]}',
    '{"__array__": ["<f8", [1000000000000], [1.0]]}',
    '{"__array__": ["<f8", [-1, 0], []]}',
    '{"__array__": [null, null, 0]}',
    '{"__array__": 5}',
    '{"x": ' + "[" * 10**5,
    '{"x": ' + deep(10**5) + "}",
    "[]",
    "\0",
]


@pytest.mark.parametrize("text", HOSTILE_INFOS, ids=range(len(HOSTILE_INFOS)))
def test_hostile_infos(text, tmp_path):
    one_generation("her", tmp_path / "x.buffer")

    def change(arrays: dict[str, np.ndarray]) -> None:
        infos = np.frombuffer(text.encode(), np.uint8)
        arrays["infos"] = np.concatenate([infos, arrays["infos"][arrays["infos_end"].flat[0] :]])
        arrays["infos_end"] = arrays["infos_end"] + len(infos) - arrays["infos_end"].flat[0]

    rewrite(tmp_path / "x.buffer", "rows", change)
    assert_refused("her", tmp_path / "x.buffer")


def test_episodes_that_nobody_draws_from(tmp_path):
    """They are remembered until somebody does: on disk, no more of them than can be there."""
    buffer = make("her")
    player = Player(buffer, 0)
    player.add(1000)
    save_buffer(buffer, tmp_path / "x.buffer")
    (state,) = (tmp_path / "x.buffer").glob("state*")
    with np.load(state) as archive:
        assert len(archive["finished_ids"]) < 4 * buffer.buffer_size * buffer.n_envs
    loaded = load_buffer(make("her"), tmp_path / "x.buffer")
    for each in (buffer, loaded):
        each._settle()
    assert digest(loaded) == digest(buffer)


def test_info_that_reads_like_an_array_is_not_saved(tmp_path):
    buffer = make("her")
    Player(buffer, 0).live(3)
    buffer.infos[0, 0] = {"x": {"__array__": 5}}
    with pytest.raises(ValueError, match="can only be saved as a pickle"):
        save_buffer(buffer, tmp_path / "x.buffer")
    assert not names_of(tmp_path / "x.buffer")


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
        one_generation(kind, tmp_path / f"{kind}.buffer")
        name = one_generation(kind, tmp_path / f"{kind}.damaged.buffer")
        part = Manifest.read(tmp_path / f"{kind}.damaged.buffer" / name).parts[0]
        os.truncate(tmp_path / f"{kind}.damaged.buffer" / part.name, 100)
        path = tmp_path / f"{kind}.pickle.buffer"
        resign(path / one_generation(kind, path), lambda content, path=path: bring_a_pickle(content, path))
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


def bring_a_pickle(content: dict[str, Any], path: Path) -> None:
    """An array of objects, as NumPy would save it."""
    part = part_of(content, "rows")
    np.savez(path / part["name"], actions=np.array([Evil()], object))
    part["size"] = (path / part["name"]).stat().st_size
    part["members"]["actions"].update(dtype="|O", shape=[1], offset=64, n_header=100)


# ---- files of all releases

GOLDEN = json.loads(golden.EXPECTED.read_text())


@pytest.mark.parametrize("name", GOLDEN)
def test_files_of_an_older_release(name, tmp_path):
    """They are loaded as they were saved, and what comes is added to them."""
    kind = name.split("-")[0]
    source = golden.HERE / f"{name}.buffer"
    assert golden.contents(load_buffer(make(kind, 8), source)) == GOLDEN[name]
    buffer = load_buffer(make(kind, 8), copied(source, tmp_path / "x.buffer"))
    Player(buffer, 1).live(3)
    save_buffer(buffer, tmp_path / "x.buffer")
    assert golden.contents(load_buffer(make(kind, 8), tmp_path / "x.buffer")) == golden.contents(buffer)


def test_every_kind_has_files_of_this_version():
    assert {f"{kind}-v{VERSION}" for kind in KINDS} <= GOLDEN.keys()
