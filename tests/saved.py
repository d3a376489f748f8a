"""What tests of damaged and of unfinished files need: buffers of every kind, what is in them, and a disk that is watched."""

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
import sb3_per.persistence.buffer_files as buffer_files
import sb3_per.persistence.generations as generations
from sb3_per import PrioritizedDictReplayBuffer, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer, RankBased
from sb3_per.persistence.generations import Directory, Manifest
from sb3_per.persistence.npz import Member, write_npz

KINDS = ["plain", "frames", "her", "rank", "memory"]

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
GOAL = spaces.Box(-1, 1, (2,), np.float32)
STACK = 3
SPACES = {
    "frames": spaces.Dict({"image": spaces.Box(0, 255, (STACK, 4, 4), np.uint8), "vector": VECTOR}),
    "her": spaces.Dict({"observation": VECTOR, "achieved_goal": GOAL, "desired_goal": GOAL}),
}
ACTION = spaces.Box(-1, 1, (2,), np.float32)


def make(kind: str, n_rows: int = 16, n_envs: int = 2) -> PrioritizedReplayBuffer:
    """An empty buffer; the same for the same kind, in every process."""
    arguments = (n_rows * n_envs, SPACES.get(kind, VECTOR), ACTION)
    kwargs: dict[str, Any] = dict(device="cpu", n_envs=n_envs, beta_anneal_steps=1000)
    if kind == "frames":
        return PrioritizedDictReplayBuffer(*arguments, frames=dict(image=STACK), **kwargs)
    if kind == "her":
        return PrioritizedHerReplayBuffer(*arguments, env=None, copy_info_dict=True, **kwargs)  # nobody asks for a reward
    if kind == "memory":
        kwargs.update(optimize_memory_usage=True, handle_timeout_termination=False)
    return PrioritizedReplayBuffer(*arguments, scheme="rank" if kind == "rank" else "proportional", **kwargs)


class Player:
    """
    Lets a buffer live.

    :param buffer: that is added to
    :param seed: of all that comes
    """

    def __init__(self, buffer: PrioritizedReplayBuffer, seed: int):
        self.buffer, self.rng = buffer, np.random.default_rng(seed)
        self.obs = self.observation()

    def observation(self, before: Any = None) -> Any:
        """The one behind another, or a first one."""
        n_envs, rng = self.buffer.n_envs, self.rng

        def vector(space: spaces.Box) -> np.ndarray:
            return rng.uniform(-1, 1, (n_envs, *space.shape)).astype(np.float32)

        space = self.buffer.observation_space
        if not isinstance(space, spaces.Dict):
            return vector(VECTOR)
        obs = {key: vector(part) for key, part in space.spaces.items() if key != "image"}
        if "image" in space.spaces:
            frame = rng.integers(1, 256, (n_envs, 1, 4, 4)).astype(np.uint8)
            padding = np.zeros((n_envs, STACK - 1, 4, 4), np.uint8)
            obs["image"] = np.concatenate([padding if before is None else before["image"][:, 1:], frame], axis=1)
        return obs

    def add(self, n_steps: int) -> None:
        n_envs, rng = self.buffer.n_envs, self.rng
        for _ in range(n_steps):
            obs, next_obs = self.obs, self.observation(self.obs)
            done = rng.random(n_envs) < 0.2
            infos = [{"TimeLimit.truncated": bool(rng.random() < 0.5), "seen": rng.random(2)} for _ in range(n_envs)]
            self.obs = self.observation() if done.any() else next_obs
            self.buffer.add(obs, next_obs, rng.uniform(-1, 1, (n_envs, 2)), rng.normal(size=n_envs), done, infos)

    def live(self, n_steps: int | None = None) -> None:
        """Something of all that happens to a buffer between two saves."""
        rng, buffer = self.rng, self.buffer
        self.add(int(rng.choice([0, 1, 3, 10, 40], p=[0.1, 0.2, 0.4, 0.2, 0.1])) if n_steps is None else n_steps)
        if n_steps is None and rng.random() < 0.1:
            buffer.reset()
            self.add(2)
        n_ids = min(buffer.size(), 5) * buffer.n_envs
        if n_ids:
            buffer.update_priorities(buffer._next_id - 1 - rng.permutation(n_ids), rng.normal(size=n_ids) * 3)
            buffer._n_sampled += 1
            buffer._anneal_beta(buffer._n_sampled / 1000)


def digest(buffer: PrioritizedReplayBuffer) -> str:
    """Of all that a buffer holds, to the bit. Nothing is left out that a draw, or a save, could see; nothing is changed."""
    held = (np.arange(buffer.size()) + (buffer.pos if buffer.full else 0)) % buffer.buffer_size
    content: dict[str, Any] = {"numbers": (buffer.pos, buffer.full, buffer._n_added, buffer._n_before_ring)}
    settings = ("max_priority", "beta", "_n_admitted", "_n_updates", "_n_sampled", "_next_kappa", "_mass_of_max", "scheme")
    content.update({name: getattr(buffer, name) for name in settings})
    for name in (
        "observations",
        "next_observations",
        "actions",
        "rewards",
        "dones",
        "timeouts",
        "ep_start",
        "ep_length",
        "infos",
    ):
        array = getattr(buffer, name, None)
        for key, part in array.items() if isinstance(array, dict) else [("", array)]:
            if part is not None:
                content[f"{name} {key}"] = part[:][held]
    if isinstance(buffer.scheme, RankBased):
        content["_mass_of_max"] = None  # infinite, and a matter of nobody
    if buffer.optimize_memory_usage:
        content["newest"], content["next_observations "] = buffer.observations[buffer.pos], None
    if hasattr(buffer, "_finished"):
        content["episodes"] = buffer._current_ep_start, [leaves.tolist() for leaves in buffer._finished]
    tree: Any = buffer._tree
    content["masses"] = tree.ranked() if hasattr(tree, "ranked") else tree.masses
    if buffer._given_masses is not None:
        is_given = buffer._given_masses[0] >= 0
        content["given"] = [part[is_given] for part in buffer._given_masses]
    hashed = hashlib.sha256()
    for name, value in sorted(content.items()):
        hashed.update(f"{name}: {plain(value)}\n".encode())
    return hashed.hexdigest()


def plain(value: Any) -> str:
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"{value.dtype}{value.shape}{hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, np.ndarray | list | tuple):
        return str([plain(part) for part in value])
    if isinstance(value, dict):
        return str({key: plain(part) for key, part in sorted(value.items())})
    return repr(float(value) if isinstance(value, float) else value)


def names_of(directory: Path) -> set[str]:
    return {entry.name for entry in os.scandir(directory)} - {".lock"}


def named_files(directory: Path) -> set[str]:
    """What belongs to the generations that are there."""
    manifests = [Manifest.read(directory / name) for name in Directory(directory).manifests()]
    return {name for manifest in manifests for name in [manifest.name, *(part.name for part in manifest.parts)]}


def resign(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change what a manifest says, and make its checksum fit."""
    content = json.loads(path.read_bytes())
    del content["crc32"]
    changed = change(content)
    write_signed(path, json.dumps(content if changed is None else changed))


def write_signed(path: Path, text: str) -> None:
    body = text.encode()[1:]
    path.write_bytes(b'{"crc32": "%08x",\n' % zlib.crc32(body) + body)


# ---- a disk that is watched


class Disk:
    """
    Stands in for ``os`` where files are written: every operation is announced before it is done.

    :param announce: is given the operation's name and its arguments, and may raise, or end the process
    """

    def __init__(self, announce: Callable[..., None]):
        self.announce = announce
        self.paths: dict[int, Path] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open_file(self, path: Any, mode: str, **kwargs: Any) -> Any:
        """Stands in for ``open``."""
        if mode != "xb":
            return open(path, mode, **kwargs)
        self.announce("create", Path(path))
        return io.BufferedWriter(_File(self, Path(path)), 2**16)

    def open(self, path: Any, *args: Any) -> int:
        descriptor = os.open(path, *args)
        self.paths[descriptor] = Path(path)
        return descriptor

    def fsync(self, descriptor: int) -> None:
        self.announce("fsync", self.paths[descriptor])  # and nothing else: a test that is killed loses no power

    def mkdir(self, path: Any) -> None:
        self.announce("mkdir", Path(path))
        os.mkdir(path)

    def replace(self, source: Any, target: Any) -> None:
        self.announce("replace", Path(source), Path(target))
        os.replace(source, target)

    def unlink(self, path: Any) -> None:
        if os.path.lexists(path):
            self.announce("unlink", Path(path))
        os.unlink(path)


class _File(io.FileIO):
    """Below the buffer: every write is one of the disk's."""

    def __init__(self, disk: Disk, path: Path):
        super().__init__(path, "xb")
        self.disk, self.path = disk, path
        disk.paths[self.fileno()] = path

    def write(self, data: Any) -> int:  # type: ignore[override]
        data = bytes(data)
        try:
            self.disk.announce("write", self.path, self.tell(), data)
        except OSError:
            super().write(data[: len(data) // 2])  # a disk that is full takes what it has room for
            raise
        return super().write(data)


def watch(announce: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every operation of a save is announced, one after the other."""
    disk = Disk(announce)
    for module in (atomic, generations):
        monkeypatch.setattr(module, "os", disk)
    monkeypatch.setattr(atomic, "open", disk.open_file, raising=False)
    monkeypatch.setattr(buffer_files, "in_parallel", lambda functions: [function() for function in functions])


# ---- a directory that somebody else has made


def rewrite(directory: Path, stream: str, change: Callable[[dict[str, np.ndarray]], Any]) -> None:
    """Change the arrays of the only generation's first file of a stream, and make all checksums fit."""
    (name,) = Directory(directory).manifests()
    manifest = Manifest.read(directory / name)
    part = manifest.of_stream(stream)[0]
    with np.load(directory / part.name) as archive:
        arrays = dict(archive)
    change(arrays)
    with open(directory / part.name, "wb") as file:
        part.members = write_npz(file, {key: Member.of(np.asarray(array)) for key, array in arrays.items()})
    part.size = (directory / part.name).stat().st_size
    (directory / name).write_bytes(manifest.to_bytes())
