"""
Save a buffer to a directory of files, see :mod:`sb3_per.persistence.generations`, and load it.

What is saved are streams of rows (``streams.py``), the state (``state_file.py``) and facts (``facts.py``).
"""

import uuid
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from sb3_per.buffers import PrioritizedReplayBuffer
from sb3_per.buffers.copies import empty_like
from sb3_per.persistence import generations
from sb3_per.persistence.atomic import make_directory, sole_writer
from sb3_per.persistence.facts import MUST_FIT, describe_buffer, require_fit
from sb3_per.persistence.generations import DamagedFileError, DataFile, Manifest, manifest_names_in, numbers_in
from sb3_per.persistence.state_file import arrays_left_out, pack_state, unpack_state
from sb3_per.persistence.streams import DEMONSTRATIONS, Stream, buffers_in, ranges_to_write, stream_of, without_small
from sb3_per.utils.checks import check_argument, integer

SUFFIX = ".buffer"

BufferT = TypeVar("BufferT", bound=PrioritizedReplayBuffer)


class SavedBuffer:
    """
    A directory to which a buffer is saved again and again. It remembers which files have the rows of this buffer, so that each
    save writes only what is new since the last save or load. A copy of it remembers nothing, and writes everything.

    :param path: path of the directory
    """

    def __init__(self, path: str | Path):
        self.path = Path(path).absolute()
        # By stream, the arrays that were saved, and their files. Arrays that were assigned since are other ones.
        self._known: dict[str, tuple[list[weakref.ref[Any]], list[DataFile]]] = {}

    def __reduce__(self) -> Any:
        return SavedBuffer, (self.path,)

    def save(self, buffer: PrioritizedReplayBuffer, num_timesteps: int = 0, full: bool = False, keep: int = 2) -> None:
        """
        Write a generation. On any error, the generations that were there before remain.

        :param buffer: buffer to save; it does not change
        :param num_timesteps: steps of the model, part of the name of the manifest
        :param full: write everything, e.g. because stored observations were changed by hand
        :param keep: number of generations to keep, at least 1
        :raises ValueError: for a ``keep`` below 1, or what a directory cannot hold; or if the directory has another format
        :raises OSError: e.g. on a full disk, or if another process is saving to the directory
        :warns UserWarning: for arrays of a user's class, which a directory does not hold
        """
        check_argument("keep", keep, integer())
        if left_out := arrays_left_out(buffer):
            warnings.warn(
                f"{self.path} does not hold what {type(buffer).__name__} keeps in {', '.join(left_out)}: save such a buffer "
                "to a pickle, or save these arrays yourself"
            )
        with buffer.lock:
            facts = describe_buffer(buffer)
            make_directory(self.path)
            with sole_writer(self.path):
                # A release with another format may not be able to read what this one leaves: this raises an error then.
                older = generations.whole_generations(self.path, with_contents=False)
                manifest = self._write(buffer, facts, num_timesteps, full)
                generations.clean_up(self.path, [manifest, *older[: keep - 1]])

    def load(self, buffer: BufferT, generation: str | None = None) -> BufferT:
        """
        Load a generation. No code from the files runs.

        :param buffer: buffer that says class, spaces, scheme and settings; it does not change
        :param generation: name of its manifest; ``None``: the newest complete generation
        :return: a new buffer with these settings
        :raises FileNotFoundError: if nothing is saved there
        :raises DamagedFileError: if no generation is complete; the message names file and damage
        :raises ValueError: if the files do not fit this buffer, or have another format
        """
        damage: dict[str, DamagedFileError] = {}
        while True:
            names = manifest_names_in(self.path) if generation is None else [generation]
            # A writer may have replaced generations in the meantime: try the newest that has not been tried.
            name = next((name for name in names if name not in damage), None)
            if name is None:
                raise next(iter(damage.values()), FileNotFoundError(f"There is no saved buffer at {self.path}"))
            try:
                loaded = self._read(buffer, name)
            except DamagedFileError as error:
                damage[name] = error
                continue
            newer = [error for other, error in damage.items() if numbers_in(other) > numbers_in(name)]
            if newer:
                warnings.warn(f"{newer[0]}. An older generation was loaded instead: {self.path / name}")
            return loaded

    # ---- what the last save or load wrote or read

    def _remember(self, streams: dict[str, Stream], manifest: Manifest) -> None:
        """Note which files have the rows of these arrays."""
        self._known = {
            name: ([weakref.ref(rows.holder) for rows in stream.rows], manifest.of_stream(name))
            for name, stream in streams.items()
        }

    def _files_of(self, streams: dict[str, Stream]) -> dict[str, list[DataFile]]:
        """Find the files that need not be written again, by stream."""
        known = {}
        for name, stream in streams.items():
            arrays, files = self._known.get(name, ([], []))
            present = [rows.holder for rows in stream.rows]
            if len(arrays) == len(present) and all(saved() is array for saved, array in zip(arrays, present, strict=True)):
                known[name] = [file for file in files if stream.steps.first < file.end <= stream.steps.end]
        try:
            for files in known.values():
                for file in files:
                    file.check_size(self.path)
        except DamagedFileError as error:
            warnings.warn(f"Everything is written anew: {error}")
            return {}
        return known

    # ---- one generation

    def _write(self, buffer: PrioritizedReplayBuffer, facts: dict[str, Any], num_timesteps: int, full: bool) -> Manifest:
        """
        Write a generation, or nothing.

        :param buffer: buffer to save
        :param facts: description of the buffer
        :param num_timesteps: steps of the model
        :param full: write everything
        :return: manifest of the generation
        """
        numbers, blocks = pack_state(buffer)  # first, because it counts the rows that somebody has written by hand
        streams = {f"{prefix}rows": stream_of(part) for prefix, part in buffers_in(buffer).items()}
        ranges = {name: [stream.steps.first, stream.steps.end] for name, stream in streams.items()}
        generation = max((numbers_in(name)[0] for name in manifest_names_in(self.path)), default=0) + 1
        manifest = Manifest(generation, num_timesteps, facts, numbers, ranges, [])
        known = {} if full else self._files_of(streams)
        new = [manifest.name]
        try:
            for name, stream in streams.items():
                kept = without_small(known.get(name, []), stream)
                manifest.files += kept
                for first, end in ranges_to_write(stream, kept):
                    # Names are unique, so that a failed save never removes a file that another generation needs.
                    new.append(f"rows-{uuid.uuid4().hex[:12]}-{first}-{end}.bin")
                    manifest.files.append(DataFile.write(self.path, new[-1], name, first, end, stream.pack(first, end)))
            new.append(f"state-{generation:08d}.bin")
            manifest.files.append(DataFile.write(self.path, new[-1], "state", 0, 0, blocks))
            generations.commit(self.path, manifest)
        except BaseException:
            # The manifest first. On a full disk, others may need the space.
            generations.remove(self.path, new)
            raise
        self._remember(streams, manifest)
        return manifest

    def _read(self, buffer: BufferT, name: str) -> BufferT:
        """
        Read a generation.

        :param buffer: see :meth:`load`
        :param name: name of the manifest
        :return: a new buffer
        :raises DamagedFileError: if a file is damaged, or the files contradict each other
        """
        manifest = Manifest.read(self.path / name)
        facts = describe_buffer(buffer)
        loaded, keeps_masses = self._empty_buffer_for(manifest, buffer, facts)
        with _restoring(self.path / name):
            streams = self._fill(loaded, manifest)
            unpack_state(loaded, manifest, self._read_state(manifest), streams, keeps_masses)
        if all(stream.steps.shift == 0 for stream in streams.values()):
            self._remember(streams, manifest)
        if loaded.settings.frames != buffer.settings.frames:
            loaded = type(buffer).from_replay_buffer(loaded, frames=buffer.settings.frames)  # type: ignore[assignment]
        if buffer.draw_record is not None:
            loaded.draw_record = buffer.draw_record.emptied(loaded.numbering.capacity)
        if not keeps_masses:
            schemes = f"{manifest.about['scheme']}, and this buffer has {facts['scheme']}"
            warnings.warn(f"{self.path} was saved with {schemes}: all transitions get the largest priority")
        return loaded

    def _empty_buffer_for(self, manifest: Manifest, buffer: BufferT, facts: dict[str, Any]) -> tuple[BufferT, bool]:
        """
        Make an empty buffer that stores as the saved one does, if this fits the model.

        :param manifest: manifest of the generation
        :param buffer: see :meth:`load`
        :param facts: description of this buffer
        :return: the new buffer, and whether its masses have the same meaning
        :raises ValueError: if the files do not fit the buffer
        :raises DamagedFileError: for settings that cannot be
        """
        path = self.path / manifest.name
        found = manifest.about
        with _restoring(path):
            frames = found["frames"]
            keeps_masses = found["scheme"] == facts["scheme"]
        for fact in MUST_FIT:
            require_fit(path, fact, found.get(fact), facts[fact])
        if frames == facts["frames"]:
            empty = empty_like(buffer)
        else:
            with _restoring(path):  # a bad setting
                empty = empty_like(buffer, frames=frames)
        require_fit(path, "arrays_by_row", found.get("arrays_by_row"), describe_buffer(empty)["arrays_by_row"])
        return empty, keeps_masses

    def _fill(self, buffer: PrioritizedReplayBuffer, manifest: Manifest) -> dict[str, Stream]:
        """
        Read the rows of a generation into an empty buffer.

        :param buffer: empty buffer of any size. Discard it after an error
        :param manifest: manifest of the generation
        :return: what was read, by stream
        :raises ValueError: if a file is damaged, or rows are missing
        """
        n_rows = manifest.about["buffer_size"]
        first, end = manifest.ranges["rows"]
        if not 0 <= end - first <= n_rows or first < 0:
            raise ValueError(f"rows from {first} to {end} are in a buffer of {n_rows} rows")
        if f"{DEMONSTRATIONS}rows" in manifest.ranges:
            n_demonstrations = manifest.ranges[f"{DEMONSTRATIONS}rows"][1]
            buffer.demonstrations.hold(buffer.empty_twin(n_demonstrations + 1))
        streams = {}
        for prefix, part in buffers_in(buffer).items():
            name = f"{prefix}rows"
            first, end = manifest.ranges[name]
            stream = streams[name] = stream_of(part)
            steps = stream.steps
            steps.place(first, end, steps.n_rows if prefix else n_rows, part.optimize_memory_usage)
            n_filled = steps.first
            for file in manifest.of_stream(name):
                if file.end > steps.first:
                    arrays = file.read(self.path)
                    if file.first > n_filled:
                        raise ValueError(f"steps {n_filled} to {file.first} are in no file")
                    stream.unpack(file.first, file.end, arrays)
                    n_filled = file.end
            if n_filled != max(end, steps.first):
                raise ValueError(f"{name} ends at {n_filled}, not at {end}")
        return streams

    def _read_state(self, manifest: Manifest) -> dict[str, np.ndarray]:
        (file,) = manifest.of_stream("state")
        return file.read(self.path)


@contextmanager
def _restoring(path: Path) -> Iterator[None]:
    """
    Report contents that contradict themselves as damage: values out of range, or missing names. Other errors are mistakes in
    code, perhaps in a user's subclass, and must not look like damage.

    :param path: path of the manifest
    :raises DamagedFileError: in place of such an error
    """
    try:
        yield
    except DamagedFileError:
        raise
    except (ValueError, LookupError, OverflowError) as error:
        raise DamagedFileError(f"{path} is damaged: {error!r}") from error


# ---- by path


def save_buffer(buffer: PrioritizedReplayBuffer, path: str | Path, num_timesteps: int = 0, keep: int = 2) -> None:
    """
    Save everything to a directory, see :meth:`SavedBuffer.save`.

    :param buffer: buffer to save; it does not change
    :param path: path of the directory, which is made if it does not exist
    :param num_timesteps: steps of the model, part of the name of the manifest
    :param keep: number of generations to keep, at least 1
    """
    SavedBuffer(path).save(buffer, num_timesteps, keep=keep)


def load_buffer(buffer: BufferT, path: str | Path) -> BufferT:
    """
    Load a buffer from a directory, see :meth:`SavedBuffer.load`.

    :param buffer: buffer that says class, spaces, scheme and settings; it does not change
    :param path: path of the directory or, to choose a generation, of its manifest
    :return: a new buffer with these settings
    """
    directory, generation = located(path)
    return SavedBuffer(directory).load(buffer, generation)


def located(path: str | Path) -> tuple[Path, str | None]:
    """
    Find the directory of a saved buffer.

    :param path: path of the directory, or of a manifest in it
    :return: absolute path of the directory, and the name of the manifest; ``None`` for a directory
    """
    path = Path(path).absolute()
    return (path.parent, path.name) if path.suffix == ".json" and not path.is_dir() else (path, None)


def is_buffer_path(path: Path) -> bool:
    """
    Tell the directory of a saved buffer from a pickle.

    :param path: any path
    :return: whether this is such a directory, a manifest in one or, if nothing exists there, the name of one
    """
    return (
        path.is_dir()
        or (path.suffix == SUFFIX and not path.exists())
        or (path.suffix, path.parent.suffix) == (".json", SUFFIX)
    )
