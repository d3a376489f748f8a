"""
Helpers for tests of saved buffers: a buffer of each kind, snapshots of contents, and a disk that announces its operations.
"""

import copy
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import sb3_per.persistence.atomic as atomic
import sb3_per.persistence.generations as generations
from sb3_per import (
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.buffers.slots import read_slots, read_steps
from sb3_per.persistence.generations import DataFile, Manifest, manifest_names_in

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
GOAL = spaces.Box(-1, 1, (2,), np.float32)
STACK = 3
IMAGE = spaces.Box(0, 255, (STACK, 4, 4), np.uint8)
ACTION = spaces.Box(-1, 1, (2,), np.float32)


class Goals:
    """Stand in for an environment with goals: the reward is minus the distance between achieved and desired goal."""

    def env_method(self, name: str, achieved: np.ndarray, desired: np.ndarray, infos: Any, indices: Any) -> list[np.ndarray]:
        return [-np.abs(achieved - desired).sum(axis=1)]


#: Class, observation space and settings of each kind. In "actors", transitions come with TD errors.
KINDS: dict[str, tuple[type[PrioritizedReplayBuffer], spaces.Space, dict[str, Any]]] = {
    "plain": (PrioritizedReplayBuffer, VECTOR, dict(n_steps=3, beta_anneal_steps=1000)),
    "frames": (
        PrioritizedDictReplayBuffer,
        spaces.Dict({"image": IMAGE, "a/../b": IMAGE, "vector": VECTOR}),
        dict(frames={"image": STACK, "a/../b": 1}),
    ),
    "her": (
        PrioritizedHerReplayBuffer,
        spaces.Dict({"observation": VECTOR, "achieved_goal": GOAL, "desired_goal": GOAL}),
        dict(env=Goals()),
    ),
    "rank": (PrioritizedReplayBuffer, VECTOR, dict(scheme="rank")),
    "memory": (PrioritizedReplayBuffer, VECTOR, dict(optimize_memory_usage=True, handle_timeout_termination=False)),
    "actors": (PrioritizedReplayBuffer, VECTOR, dict(initial_priority="td_error", scheme="lap")),
    "sequences": (
        PrioritizedSequenceReplayBuffer,
        VECTOR,
        dict(sequence_length=3, burn_in=2, sequence_period=2, state_shapes=((1, 2),)),
    ),
    "demonstrations": (
        PrioritizedDictReplayBuffer,
        spaces.Dict({"image": IMAGE, "vector": VECTOR}),
        dict(frames={"image": STACK}, demonstration_fraction=0.4, demonstration_fraction_end=0.1),
    ),
}


def make(kind: str, n_rows: int = 16, n_envs: int = 2, users_class: Any = None, **changed: Any) -> Any:
    """Return an empty buffer. Two calls with the same arguments return equal buffers, in every process."""
    cls, space, settings = KINDS[kind]
    return (users_class or cls)(n_rows * n_envs, space, ACTION, device="cpu", n_envs=n_envs, **{**settings, **changed})


class Player:
    """
    Fill buffers of one kind with the same random steps, draws, updates and resets.

    :param buffers: buffers of the same kind
    :param seed: seed of all random choices
    """

    def __init__(self, *buffers: Any, seed: int = 0):
        self.buffers, self.buffer, self.rng = buffers, buffers[0], np.random.default_rng(seed)
        self.n_envs = self.buffer.n_envs
        self.obs = self.observation()

    def observation(self, before: Any = None) -> Any:
        """Return the observation that follows ``before``, or the first one of an episode."""
        space = self.buffer.observation_space
        if not isinstance(space, spaces.Dict):
            return self.vector(space)
        obs = {key: self.vector(part) for key, part in space.spaces.items() if part is not IMAGE}
        for key in space.spaces.keys() - obs.keys():
            # Some frames are black, because buffers treat frames of zeros as padding.
            frame = self.rng.integers(0, 256, (self.n_envs, 1, 4, 4)).astype(np.uint8) * (self.rng.random() < 0.7)
            padding = np.zeros((self.n_envs, STACK - 1, 4, 4), np.uint8)
            obs[key] = np.concatenate([padding if before is None else before[key][:, 1:], frame.astype(np.uint8)], axis=1)
        return obs

    def vector(self, space: Any) -> np.ndarray:
        return self.rng.uniform(-1, 1, (self.n_envs, *space.shape)).astype(np.float32)

    def demonstrate(self, n_steps: int) -> None:
        """Add demonstrations."""
        steps = []
        for _ in range(n_steps):
            before, self.obs = self.obs, self.observation(self.obs)
            steps.append((before, self.obs))
        obs, next_obs = ({key: np.stack([step[key] for step in part]) for key in part[0]} for part in zip(*steps, strict=True))
        shape = (n_steps, self.n_envs)
        actions, rewards = self.rng.uniform(-1, 1, (*shape, 2)), self.rng.normal(size=shape)
        for buffer in self.buffers:
            buffer.add_demonstrations(obs, next_obs, actions, rewards, np.zeros(shape), [[{}] * self.n_envs] * n_steps)

    def add(self, n_steps: int) -> None:
        n_envs, rng = self.n_envs, self.rng
        if self.buffer.settings.demonstration_fraction > 0.0 and (not len(self.buffer.demonstrations) or rng.random() < 0.2):
            self.demonstrate(3)
            for buffer in self.buffers:
                buffer.update_beta(rng.uniform() if len(self.buffers) == 1 else 0.5)
        for _ in range(n_steps):
            obs, next_obs = self.obs, self.observation(self.obs)
            done = rng.random(n_envs) < 0.2
            timeout = done & (rng.random(n_envs) < 0.5)
            infos = [{"TimeLimit.truncated": bool(flag)} for flag in timeout]
            self.obs = self.observation() if done.any() else next_obs
            actions, rewards = rng.uniform(-1, 1, (n_envs, 2)), rng.normal(size=n_envs)
            has_errors = self.buffer.settings.initial_priority == "td_error" and rng.random() < 0.8
            errors = {"td_errors": rewards} if has_errors else {}
            for buffer in self.buffers:
                buffer.add(obs, next_obs, actions, rewards, done, infos, **errors)

    def play(self, n_steps: int | None = None) -> None:
        """
        Do what may happen to a buffer between two saves: add steps, rarely reset, often draw and update.

        :param n_steps: number of steps to add, without a reset; ``None``: a random number, and sometimes a reset
        """
        rng = self.rng
        self.add(int(rng.choice([0, 1, 3, 10, 40], p=[0.1, 0.2, 0.4, 0.2, 0.1])) if n_steps is None else n_steps)
        if n_steps is None and rng.random() < 0.1:
            for buffer in self.buffers:
                buffer.reset()
            self.add(2)
        if rng.random() < 0.7:
            self.learn()

    def learn(self) -> list[np.ndarray]:
        """Draw a batch and update its priorities, if anything can be drawn. Return what each buffer drew."""
        seed, drawn = int(self.rng.integers(2**31)), []
        for buffer in self.buffers:
            np.random.seed(seed)
            n = np.count_nonzero(buffer.masses)
            if n:
                batch = buffer.sample(min(n, 5))
                rewards = batch.rewards.numpy()
                drawn.append(np.concatenate([batch.indices, batch.weights.numpy().ravel(), rewards.ravel()]))
                buffer.update_priorities(batch.indices, np.random.standard_normal(rewards.shape))
        return drawn


# ---- contents of a buffer


def snapshot(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """Copy everything that a draw or a save depends on, by name. The buffer does not change."""
    state = buffer.state_to_save()
    n = buffer.size()
    found: dict[str, Any] = copy.deepcopy({**state.numbers, **state.arrays})
    found.update({name: array[:n].copy() for name, array in state.by_row.items()})
    found.update(pos=buffer.pos, full=buffer.full, beta=buffer.beta, max_priority=buffer.max_priority)
    found.update(scheme=repr(buffer.scheme), ids=buffer.transition_ids, masses=buffer.masses)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        flatten(name, getattr(buffer, name, {}), n, found)
    for name in ("ep_start", "ep_length", "_current_ep_start"):
        flatten(name, getattr(buffer, name, {}), n, found)
    if buffer.optimize_memory_usage:
        found["newest"] = buffer.observations[buffer.pos].copy()
    if buffer.demonstrations.buffer is not None:
        of_demonstrations = snapshot(buffer.demonstrations.buffer)
        # Their buffer may have room for another number.
        del of_demonstrations["ids"], of_demonstrations["masses"]
        found.update({f"demonstrations/{name}": value for name, value in of_demonstrations.items()})
    return found


def flatten(name: str, arrays: Any, n: int, into: dict[str, Any]) -> None:
    for key, array in arrays.items() if isinstance(arrays, dict) else [("", arrays)]:
        into[f"{name}.{key}"] = copy.deepcopy(np.asarray(array[:n]))


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, np.ndarray) and value.dtype != object:
            np.testing.assert_array_equal(actual[name], value, err_msg=name, strict=True)
        else:
            assert comparable(actual[name]) == comparable(value), name


def digest(buffer: PrioritizedReplayBuffer) -> str:
    """Return a hash of :func:`snapshot`. Equal hashes mean equal contents, to the bit."""
    hashed = hashlib.sha256()
    for name, value in sorted(snapshot(buffer).items()):
        hashed.update(f"{name}: {comparable(value)}\n".encode())
    return hashed.hexdigest()


def comparable(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, np.ndarray | list | tuple):
        return str([comparable(part) for part in value])
    if isinstance(value, dict):
        return str({key: comparable(part) for key, part in sorted(value.items())})
    return repr(float(value) if isinstance(value, int | float) else value)


def column(buffer: PrioritizedReplayBuffer, env: int) -> dict[str, Any]:
    """Return the complete transitions of one environment, oldest first, with their masses."""
    n = buffer.numbering.n // buffer.n_envs
    rows = (buffer.pos - n + np.arange(n)) % buffer.buffer_size
    slots = rows * buffer.n_envs + env
    found = {name: getattr(buffer, name)[rows, env] for name in ("actions", "rewards", "dones", "timeouts")}
    found["masses"] = buffer.masses[rows, env]
    for name, observations in (
        ("observations", read_slots(buffer.observations, slots)),
        ("next_observations", read_steps(buffer, slots, n_steps=1).next_observations),
    ):
        flatten(name, observations, n, found)
    return found


def assert_same_newest_steps(
    actual: PrioritizedReplayBuffer, expected: PrioritizedReplayBuffer, with_masses: bool = True
) -> None:
    """Check that each environment of ``actual`` has the newest transitions of ``expected``, as many as fit."""
    for env in range(expected.n_envs):
        found, wanted = column(actual, env), column(expected, env)
        n = min(len(wanted["rewards"]), actual.buffer_size - actual.optimize_memory_usage)
        if not with_masses:
            del found["masses"], wanted["masses"]
        assert_same(found, {name: array[len(array) - n :] for name, array in wanted.items()})


# ---- files


def names_of(directory: Path) -> set[str]:
    return {entry.name for entry in os.scandir(directory)} - {".lock"}


def files_in_manifests(directory: Path) -> set[str]:
    """Return the names of all manifests, and of the files that belong to them."""
    manifests = [Manifest.read(directory / name) for name in manifest_names_in(directory)]
    return {name for manifest in manifests for name in [manifest.name, *(file.name for file in manifest.files)]}


def change_manifest(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the content of a manifest, and write it with a correct checksum."""
    content = json.loads(path.read_bytes())
    del content["crc32"]
    changed = change(content)
    write_signed(path, json.dumps(content if changed is None else changed))


def write_signed(path: Path, text: str) -> None:
    body = text.encode()[1:]
    path.write_bytes(b'{"crc32": "%08x",\n' % zlib.crc32(body) + body)


def change_arrays(directory: Path, stream: str, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    """Change the arrays in a stream's first file, and correct all checksums. The directory has only one generation."""
    (name,) = manifest_names_in(directory)
    manifest = Manifest.read(directory / name)
    file = manifest.of_stream(stream)[0]
    arrays = file.read(directory)
    change(arrays)
    blocks = {key: [np.atleast_1d(array)] for key, array in arrays.items()}
    manifest.files[manifest.files.index(file)] = DataFile.write(
        directory, file.name, file.stream, file.first, file.end, blocks
    )
    (directory / name).write_bytes(manifest.to_bytes())


# ---- a disk that announces its operations


class Disk:
    """
    Stand in for ``os`` in the modules that write files, and announce every operation before it is done.

    :param announce: called with the operation's name and its arguments; may raise an error or end the process
    """

    def __init__(self, announce: Callable[..., None]):
        self.announce = announce
        self.paths: dict[int, Path] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open_file(self, path: Any, mode: str, **kwargs: Any) -> Any:
        """Stand in for ``open``."""
        if mode != "xb":
            return open(path, mode, **kwargs)
        self.announce("create", Path(path))
        return io.BufferedWriter(_File(self, Path(path)), 2**16)

    def open(self, path: Any, *args: Any) -> int:
        descriptor = os.open(path, *args)
        self.paths[descriptor] = Path(path)
        return descriptor

    def fsync(self, descriptor: int) -> None:
        # No real fsync is needed: these tests kill processes, but the machine keeps running.
        self.announce("fsync", self.paths[descriptor])

    def makedirs(self, path: Any, exist_ok: bool) -> None:
        if not os.path.exists(path):
            self.announce("mkdir", Path(path))
        os.makedirs(path, exist_ok=exist_ok)

    def replace(self, source: Any, target: Any) -> None:
        self.announce("replace", Path(source), Path(target))
        os.replace(source, target)

    def unlink(self, path: Any) -> None:
        if os.path.lexists(path):
            self.announce("unlink", Path(path))
        os.unlink(path)


class _File(io.FileIO):
    """File below Python's write buffer, which announces every write that reaches the disk."""

    def __init__(self, disk: Disk, path: Path):
        super().__init__(path, "xb")
        self.disk, self.path = disk, path
        disk.paths[self.fileno()] = path

    def write(self, data: Any) -> int:  # type: ignore[override]
        data = bytes(data)
        try:
            self.disk.announce("write", self.path, self.tell(), data)
        except OSError:
            super().write(data[: len(data) // 2])  # a full disk writes the part that fits
            raise
        return super().write(data)


def watch_disk(announce: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Announce every disk operation of a save."""
    disk = Disk(announce)
    for module in (atomic, generations):
        monkeypatch.setattr(module, "os", disk)
    monkeypatch.setattr(atomic, "open", disk.open_file, raising=False)
