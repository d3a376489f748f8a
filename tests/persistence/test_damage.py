"""Damaged files, files of other formats, and directories that somebody else has made."""

import errno
import functools
import itertools
import json
import os
import pickle
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tests.helpers.golden as golden
from sb3_per import PERDQN, PrioritizedReplayBuffer
from sb3_per.persistence.buffer_files import SavedBuffer, load_buffer, save_buffer
from sb3_per.persistence.checkpoint_callback import latest_checkpoint
from sb3_per.persistence.convert import convert
from sb3_per.persistence.generations import FORMAT, DamagedFileError, DataFile, Manifest, manifest_names_in, numbers_in
from tests.helpers.forks import in_fork
from tests.helpers.messages import caught_user_warnings, no_user_warnings
from tests.helpers.saved import ACTION, KINDS, Player, change_arrays, change_manifest, digest, make, names_of

INFINITY = float("inf")


@functools.cache
def three_generations(kind: str) -> tuple[dict[str, bytes], dict[str, str]]:
    """Return the files of a directory with three generations, and each generation's digest by the name of its manifest."""
    buffer, digests = make(kind), {}
    player = Player(buffer, seed=4)
    with tempfile.TemporaryDirectory() as folder:
        saved = SavedBuffer(folder)
        for i in range(3):
            player.play([20, 3, 5][i])
            saved.save(buffer, num_timesteps=i, keep=3)
            digests[manifest_names_in(Path(folder))[0]] = digest(buffer)
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


# ---- damage


def damages_of(data: bytes) -> Iterator[bytes]:
    yield b""
    yield data[: len(data) // 2]
    yield data + b"\0"
    yield bytes(len(data))
    for place in {0, len(data) - 1, *range(0, len(data), max(len(data) // 4, 1))}:
        changed = bytearray(data)
        changed[place] ^= 1 << place % 8
        yield bytes(changed)


@pytest.mark.parametrize(
    "kind, every", [("frames", 3), *(pytest.param(kind, 1, marks=pytest.mark.slow) for kind in ("frames", "her"))]
)
def test_every_damaged_file_is_found(kind, every, tmp_path):
    """
    Each file in turn is cut, extended, emptied, zeroed, changed in one bit, removed, or replaced by a directory.

    The quick form of the test damages the contents of each file in every third way, and begins with another one for each file.
    """
    path, found = tmp_path / "x.buffer", []
    digests = write_generations(kind, path)
    for number, name in enumerate(sorted(names_of(path))):
        data = (path / name).read_bytes()
        for damage in itertools.islice(damages_of(data), number % every, None, every):
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


@settings(max_examples=25, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_random_damage_never_loads_other_data(kind, tmp_path_factory, data):
    damage_at_random(kind, tmp_path_factory, data)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(KINDS)))
def test_200_random_damages_never_load_other_data(kind, tmp_path_factory, data):
    damage_at_random(kind, tmp_path_factory, data)


def damage_at_random(kind: str, tmp_path_factory: Any, data: Any) -> None:
    """Up to three files get random bytes, or exchange their contents."""
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
    for file in Manifest.read(path / max(digests)).files:
        data = (path / file.name).read_bytes()
        changed = {key: [array + 1 if array.dtype.kind == "f" else array] for key, array in file.read(path).items()}
        assert DataFile.write(path, file.name, file.stream, file.first, file.end, changed).size == file.size
        assert assert_harmless("plain", path, digests, [file.name]) != max(digests)
        (path / file.name).write_bytes(data)


def test_a_changed_digit_in_a_manifest_is_found(tmp_path):
    """The manifest is still JSON with allowed values."""
    path = tmp_path / "x.buffer"
    digests = write_generations("plain", path)
    text = (path / max(digests)).read_text()
    assert '"max_priority": ' in text
    (path / max(digests)).write_text(text.replace('"max_priority": ', '"max_priority": 9'))
    assert assert_harmless("plain", path, digests, [max(digests)]) == sorted(digests)[1]


def test_if_all_generations_are_damaged_the_error_names_the_newest(tmp_path):
    write_generations("plain", tmp_path / "x.buffer")
    for path in (tmp_path / "x.buffer").glob("state*"):
        path.unlink()
    with pytest.raises(DamagedFileError, match=r"state-00000003\.bin is missing"):
        load_buffer(make("plain"), tmp_path / "x.buffer")
    assert latest_checkpoint(tmp_path) is None


@pytest.mark.parametrize("number", [errno.EIO, errno.EINVAL, errno.EACCES])
@pytest.mark.parametrize("function", ["stat", "fromfile"])
def test_a_file_that_cannot_be_read_is_damaged_and_a_lack_of_permission_is_no_damage(number, function, tmp_path, monkeypatch):
    """After a bad sector, an older generation is loaded with a warning that names the file."""
    path = tmp_path / "x.buffer"
    digests = write_generations("plain", path)
    module = os if function == "stat" else np
    real = getattr(module, function)

    def broken(file: Any, *args: Any, **kwargs: Any) -> Any:
        if str(file).endswith("state-00000003.bin"):
            raise OSError(number, os.strerror(number), str(file))
        return real(file, *args, **kwargs)

    monkeypatch.setattr(module, function, broken)
    if number == errno.EACCES:
        with pytest.raises(PermissionError):
            load_buffer(make("plain"), path)
    else:
        with pytest.warns(UserWarning, match=rf"state-00000003\.bin is damaged: .*{os.strerror(number)}"):
            assert digest(load_buffer(make("plain"), path)) == digests[manifest_names_in(path)[1]]


def test_keep_counts_only_undamaged_generations(tmp_path):
    """A save removes the damaged generations."""
    path = tmp_path / "x.buffer"
    write_generations("plain", path)
    saved = SavedBuffer(path)
    buffer = saved.load(make("plain"))
    (path / "state-00000002.bin").write_bytes(bytes(100))
    saved.save(buffer, num_timesteps=9, keep=3)
    assert [numbers_in(name)[1] for name in manifest_names_in(path)] == [9, 2, 0]


def test_a_save_writes_damaged_files_again(tmp_path):
    """
    A save notices that an earlier file has changed. The buffer is in RAM, so the save writes everything again, with a warning.
    """
    path = tmp_path / "x.buffer"
    digests = write_generations("plain", path)
    saved = SavedBuffer(path)
    buffer = saved.load(make("plain"))
    (file, *_) = Manifest.read(path / max(digests)).of_stream("rows")
    os.truncate(path / file.name, file.size - 1)
    with pytest.warns(UserWarning, match=rf"Everything is written anew: .*{file.name}"):
        saved.save(buffer)
    assert digest(load_buffer(make("plain"), path)) == digest(buffer)


class Faulty(PrioritizedReplayBuffer):
    """A buffer that cannot be restored."""

    def restore_state(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("a mistake")


def test_a_mistake_in_a_subclass_is_not_reported_as_damage(tmp_path):
    """No older generation is loaded in place of the newest one, and no warning says that a file is damaged."""
    path = tmp_path / "x.buffer"
    digests = write_generations("plain", path)
    _, space, arguments = KINDS["plain"]
    with no_user_warnings(), pytest.raises(TypeError, match="a mistake"):
        load_buffer(Faulty(32, space, ACTION, device="cpu", n_envs=2, **arguments), path)
    assert digest(load_buffer(make("plain"), path)) == digests[max(digests)]


# ---- formats


def assert_refused(path: Path, message: str) -> None:
    """Loading does not fall back to an older generation, and saving changes no file."""
    names = names_of(path)
    for attempt in (
        lambda: load_buffer(make("plain"), path),
        lambda: save_buffer(make("plain"), path),
        lambda: latest_checkpoint(path.parent),
    ):
        with pytest.raises(ValueError, match=message):
            attempt()
    assert names_of(path) == names


def test_an_unknown_format_is_refused(tmp_path):
    """The error names both formats."""
    path = tmp_path / "rl_model_replay_buffer.buffer"
    digests = write_generations("plain", path)
    change_manifest(path / max(digests), lambda content: content.update(format=3))
    assert_refused(path, "has format 3, and this release of sb3_per reads and writes format 2: use the release that wrote it")


def test_a_directory_of_format_1_is_refused_with_the_way_to_convert_it(tmp_path):
    """It was written before SB3's arrays held the transitions."""
    path = tmp_path / "rl_model_replay_buffer.buffer"
    shutil.copytree(golden.FORMAT_1, path)
    assert_refused(
        path, r"has format 1, .*at commit \w{8}, load it .*to_replay_buffer\(\).*sb3-per convert stock.pkl new.buffer"
    )


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_pickle_from_before_format_2_is_refused_with_the_way_to_convert_it(is_gone, tmp_path, monkeypatch):
    """Its classes may be gone. A zip of that time loads."""
    if is_gone:
        monkeypatch.setitem(sys.modules, "sb3_per.storage.ring", None)
    model = PERDQN.load(golden.FOLDER / "format-1.zip", env=gym.make("CartPole-v1"), device="cpu")
    settings = model.replay_buffer.settings
    assert (settings.scheme, settings.alpha, settings.n_steps, model.num_timesteps) == ("rank", 0.7, 2, 40)
    with pytest.raises(ValueError, match=r"at commit \w{8}, run: sb3-per convert old\.pkl stock\.pkl --trust"):
        model.load_replay_buffer(golden.FOLDER / "format-1.pkl")
    assert model.replay_buffer.size() == 0
    with pytest.raises(ValueError, match=r"sb3-per convert old\.pkl stock\.pkl --trust"):
        convert(golden.FOLDER / "format-1.pkl", tmp_path / "new.buffer")
    model.learn(20, reset_num_timesteps=False)


def test_files_of_this_format_are_loaded(tmp_path):
    """A change of the format needs another number. The loaded contents are as expected, and a new save adds to the files."""
    assert FORMAT == 2
    for kind in golden.KINDS:
        saved = SavedBuffer(tmp_path / f"{kind}.buffer")
        shutil.copytree(golden.directory_of(kind), saved.path)
        names = names_of(saved.path)
        buffer = saved.load(make(kind, 8))
        assert golden.contents(buffer) == json.loads(golden.expected_of(kind).read_text())
        Player(buffer, seed=1).add(1)
        saved.save(buffer)
        assert names & {file.name for file in Manifest.read(saved.path / manifest_names_in(saved.path)[0]).files}
        assert golden.contents(load_buffer(make(kind, 8), saved.path)) == golden.contents(buffer)


# ---- directories that somebody else has made: all checksums are correct


def file_of(content: dict[str, Any], stream: str) -> dict[str, Any]:
    return next(file for file in content["files"] if file["stream"] == stream)


FORGED_MANIFESTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "a file outside the directory": lambda content: file_of(content, "rows").update(name="../x.bin"),
    "missing steps": lambda content: content["files"].remove(file_of(content, "rows")),
    "another generation number": lambda content: content.update(generation=7),
    "no scheme": lambda content: content["about"].pop("scheme"),
    "a beta above 1": lambda content: content["numbers"].update(beta=7.0),
    "a largest priority below 0": lambda content: content["numbers"].update(max_priority=-1.0),
    "another first step": lambda content: content["numbers"].update(first_step=3),
    "more rows than the buffer has": lambda content: content["ranges"].update(rows=[0, 10**9]),
    "frames that cannot be": lambda content: content["about"].update(frames=-4),
}


def test_a_forged_manifest_is_refused(tmp_path):
    """An older generation would be loaded in its place."""
    for number, forgery in enumerate(FORGED_MANIFESTS):
        folder = tmp_path / str(number)
        folder.mkdir()
        (_, name) = sorted(write_generations("plain", folder / "x.buffer", 2))
        change_manifest(folder / "x.buffer" / name, FORGED_MANIFESTS[forgery])
        with pytest.warns(UserWarning, match=rf"{name} is damaged: .* An older generation was loaded instead"):
            load_buffer(make("plain"), folder / "x.buffer")


def set_value(name: str, value: Any, index: Any = 0) -> Callable[[dict[str, np.ndarray]], None]:
    def change(arrays: dict[str, np.ndarray]) -> None:
        arrays[name] = arrays[name].copy()
        arrays[name][index] = value

    return change


FORGED_ARRAYS: dict[str, tuple[str, str, Callable[[dict[str, np.ndarray]], Any]]] = {
    "a negative mass": ("plain", "state", set_value("values", -1.0)),
    "a mass that is no number": ("plain", "state", set_value("values", np.nan)),
    "no masses": ("plain", "state", lambda arrays: arrays.__delitem__("values")),
    "two slots of one rank": ("rank", "state", set_value("ranks", 1, slice(2))),
    "a reference to a missing frame": ("frames", "rows", set_value("observations/image:references", 10**6, ...)),
    "an episode that is too long": ("her", "state", set_value("episode_lengths", 2**62)),
    "a step before its episode": ("her", "state", set_value("episode_steps", -1)),
    "a mass of an unfinished episode": ("her", "state", set_value("episode_lengths", 0, ...)),
    "steps out of order": ("sequences", "state", set_value("windows_steps", 7, ...)),
    "a reward that is no number": ("plain", "rows", set_value("rewards", np.nan, -1)),
    "too few flags": ("plain", "state", lambda arrays: arrays.update(dones=arrays["dones"][1:])),
    "rows of another shape": ("plain", "rows", lambda arrays: arrays.update(actions=arrays["actions"][:, :1])),
    "rows of another type": ("plain", "rows", lambda arrays: arrays.update(actions=arrays["actions"].astype(np.float64))),
    "no actions": ("plain", "rows", lambda arrays: arrays.__delitem__("actions")),
}


def test_forged_arrays_are_refused(tmp_path):
    """The buffer in RAM does not change."""
    for number, forgery in enumerate(FORGED_ARRAYS):
        folder = tmp_path / str(number)
        folder.mkdir()
        kind, stream, change = FORGED_ARRAYS[forgery]
        write_generations(kind, folder / "x.buffer", 1)
        change_arrays(folder / "x.buffer", stream, change)
        current = make(kind)
        Player(current, seed=1).play(5)
        before = digest(current)
        with pytest.raises(DamagedFileError):
            load_buffer(current, folder / "x.buffer")
        assert digest(current) == before


# NumPy parses the header of an array with `ast.literal_eval`, which compiles it to a tree; "exec" would run code.
FORBIDDEN = ("pickle.", "exec", "import", "subprocess.", "os.", "socket.", "marshal.", "ctypes.", "code.", "shutil.")
HARMLESS = ("os.scandir", "os.listdir")


class Audit:
    """
    Record every event that may run code or that opens a file outside a folder. The hook stays until the process ends.

    :param folder: folder that may be read
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.events: list[tuple[str, str]] = []
        self.is_armed = False
        sys.addaudithook(self.hook)

    def hook(self, event: str, arguments: Any) -> None:
        if not self.is_armed:
            return
        if event.startswith(FORBIDDEN) and event not in HARMLESS:
            self.events.append((event, repr(arguments)[:100]))
        # SB3's constructor asks how much memory is free.
        if event == "open" and not str(arguments[0]).startswith((str(self.folder), "/proc/meminfo")):
            self.events.append((event, repr(arguments[0])))

    def load(self, path: Path) -> bool:
        """Load a buffer while events are recorded, and tell whether it was refused."""
        buffer = make(path.name.split(".")[0])
        self.is_armed = True
        try:
            load_buffer(buffer, path)
        except ValueError:
            return True
        finally:
            self.is_armed = False
        return False

    def unpickle(self) -> None:
        """Unpickle a function while events are recorded."""
        content = pickle.dumps(os.getcwd)
        self.is_armed = True
        pickle.loads(content)
        self.is_armed = False


def test_loading_runs_no_code(tmp_path):
    """The directories are valid, or contain a pickle with a correct checksum."""
    kinds = ("plain", "frames", "her")
    for kind in kinds:
        write_generations(kind, tmp_path / f"{kind}.buffer", 1)
        path = tmp_path / f"{kind}.pickle.buffer"
        (name,) = write_generations(kind, path, 1)
        change_manifest(path / name, functools.partial(add_a_pickle, path))
    paths = sorted(tmp_path.glob("*.buffer"))

    def audited() -> tuple[list[bool], list[Any], list[str]]:
        audit = Audit(tmp_path)
        for path in paths:  # imports and caches
            audit.load(path)
        audit.events.clear()
        are_refused = [audit.load(path) for path in paths]
        events = list(audit.events)
        audit.unpickle()
        return are_refused, events, [event for event, _ in audit.events[len(events) :]]

    are_refused, events, of_a_pickle = in_fork(audited)
    assert are_refused == [".pickle." in path.name for path in paths]
    assert events == []
    assert "pickle.find_class" in of_a_pickle, "the hook must record a pickle"


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("true",)


def add_a_pickle(path: Path, content: dict[str, Any]) -> None:
    """Replace the state, or the rows of a buffer with hindsight, by a pickle, which the manifest declares as objects."""
    file = file_of(content, "rows" if content["about"]["kind"] == "hindsight" else "state")
    evil = pickle.dumps(np.array([Evil()], object))
    evil += bytes(-len(evil) % 8)
    (path / file["name"]).write_bytes(evil)
    arrays = [[name, "|O", [len(evil) // 8]] for name, _, _ in file["arrays"]]
    file.update(size=len(evil), crc32=zlib.crc32(evil), arrays=arrays)
