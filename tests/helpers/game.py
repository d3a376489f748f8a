"""Random operations on a buffer of every kind, with a record of what can be drawn after each."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from sb3_per import LAP, Proportional
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.sampling.shuffled import Shuffled
from tests.helpers.drawable import Record, assert_batch_as_recorded
from tests.helpers.own_store import OwnStoreBuffer
from tests.helpers.saved import Player, make

#: Kind of buffer in ``tests.helpers.saved``, rows, environments, and settings.
KINDS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "plain": ("plain", 7, 1, dict(n_steps=1)),
    "n steps, environments": ("plain", 7, 3, {}),
    "one row": ("plain", 1, 2, dict(n_steps=1)),
    "dict": ("frames", 7, 2, dict(frames=None)),
    "frames": ("frames", 7, 2, {}),
    "folder": ("plain", 7, 2, {}),
    "frames in a folder": ("frames", 7, 2, {}),
    "memory": ("memory", 7, 2, {}),
    "her": ("her", 9, 2, {}),
    "her, one environment": ("her", 9, 1, dict(scheme="lap")),
    "sequences": ("sequences", 12, 2, {}),
    "sequences without burn-in": ("sequences", 9, 1, dict(sequence_length=2, burn_in=0, sequence_period=1)),
    "demonstrations": ("plain", 7, 2, dict(demonstration_fraction=0.3)),
    "demonstrations in frames": ("frames", 7, 1, dict(demonstration_fraction=0.3)),
    "rank": ("rank", 7, 2, {}),
    "lap": ("actors", 7, 2, {}),
    "age_decay": ("plain", 7, 2, dict(age_decay=40.0)),
    "age_decay, her": ("her", 9, 2, dict(age_decay=40.0)),
    "draws by age": ("plain", 7, 2, dict(age_decay=3.0, scheme="uniform", beta_anneal_steps=None)),
    "uniform": ("plain", 7, 2, dict(scheme="uniform", beta_anneal_steps=None)),
    "own store": ("plain", 7, 2, dict(users_class=OwnStoreBuffer)),
    "own store, demonstrations": ("plain", 7, 1, dict(users_class=OwnStoreBuffer, demonstration_fraction=0.3)),
    "shuffled": ("plain", 7, 2, dict(scheme=Shuffled(LAP()), beta_anneal_steps=None)),
    "shuffled sequences": ("sequences", 12, 2, dict(scheme=Shuffled(Proportional()))),
    "draws of SB3": ("plain", 7, 2, dict(scheme="uniform", stratified=False, beta_anneal_steps=None)),
}


#: Kinds that have no storage, source of draws or tree of their own: each is one of another kind, or a combination of two.
COMBINED = (
    "dict",
    "frames",
    "folder",
    "her, one environment",
    "demonstrations in frames",
    "age_decay, her",
    "own store, demonstrations",
    "shuffled",
    "uniform",
)

#: All kinds as parameters of a test; the combined ones are slow.
KINDS_TO_PLAY = [pytest.param(kind, marks=pytest.mark.slow if kind in COMBINED else ()) for kind in KINDS]


class Move(NamedTuple):
    """An operation that is about to be done."""

    #: does it
    call: Callable[[], Any]
    #: records of what is there afterwards; more than one for an operation of several steps, each of which is done or not
    records: list[Record]


class Game:
    """
    A buffer, its record, and random operations.

    :param kind: key of :data:`KINDS`
    :param folder: where buffers of some kinds keep their transitions, and where they are saved
    :param seed: of all random choices
    """

    def __init__(self, kind: str, folder: Path, seed: int = 0):
        base, n_rows, n_envs, settings = KINDS[kind]
        self.folder = folder
        if "folder" in kind:
            settings = {**settings, "storage_folder": str(folder / "rows")}
        self.buffer = make(base, n_rows, n_envs, **settings)
        self.record = Record(self.buffer)
        self.rng = np.random.default_rng(seed)
        self.player = Player(self.buffer, seed=seed)  # for its observations
        self.moves: dict[str, Callable[[], Move]] = {
            "add": self.add,
            "sample": self.sample,
            "update_priorities": self.update_priorities,
            "end_episodes": self.end_episodes,
            "reset": self.reset,
            "copy": self.copy,
        }
        if "own store" not in kind and "shuffled" not in kind:
            self.moves["save_and_load"] = self.save_and_load
        if "own store" not in kind:
            self.moves["convert"] = self.convert
        if not self.record.has_windows:
            self.moves["extend"] = self.extend
            self.moves["sample_observations"] = self.sample_observations
        if self.buffer.draws_all_rows and self.buffer.n_envs == 1 and not self.buffer.optimize_memory_usage:
            self.moves["append_rows"] = self.append_rows
        if self.record.has_episodes:
            self.moves["truncate_last_trajectory"] = self.truncate_last_trajectory
        else:  # with episodes, who sets `pos` by hand sets `ep_start` and `ep_length`, too
            self.moves["pos"] = self.set_pos
            self.moves["full"] = self.set_full
        if self.buffer.settings.demonstration_fraction > 0.0:
            self.moves["add_demonstrations"] = self.add_demonstrations
            self.play("add_demonstrations")

    def play(self, name: str) -> None:
        """Do an operation."""
        call, records = self.moves[name]()
        call()
        self.record = records[-1]

    def play_on(self, n_steps: int) -> None:
        """Add steps, draw and update, then one more step."""
        for name in (*["add"] * (n_steps - 1), "sample", "update_priorities", "add", "sample"):
            self.play(name)

    # ---- writing

    def steps(self, n_steps: int) -> tuple[Any, ...]:
        """Make random steps of all environments, with a time axis: observations, ..., ends, truncations and infos."""
        n_envs, rng, player = self.buffer.n_envs, self.rng, self.player
        made: list[tuple[Any, ...]] = []
        for _ in range(n_steps):
            before, player.obs = player.obs, player.observation(player.obs)
            made.append((before, player.obs, rng.uniform(-1, 1, (n_envs, 2)), rng.normal(size=n_envs)))
        dones = rng.random((n_steps, n_envs)) < 0.25
        if self.record.has_episodes:  # they must be shorter than the buffer
            lengths = np.array([self.record.length_of_episode(env) for env in range(n_envs)])
            for i in range(n_steps):
                dones[i] |= lengths + 2 >= self.buffer.buffer_size
                lengths = np.where(dones[i], 0, lengths + 1)
        timeouts = dones & (rng.random((n_steps, n_envs)) < 0.5)
        obs, next_obs, actions, rewards = (_stacked(parts) for parts in zip(*made, strict=True))
        infos = [[{"TimeLimit.truncated": bool(flag)} for flag in row] for row in timeouts]
        return obs, next_obs, actions, rewards, dones, timeouts, infos

    def add(self) -> Move:
        obs, next_obs, actions, rewards, dones, _, infos = self.steps(1)
        arguments = *(_at(part, 0) for part in (obs, next_obs, actions, rewards, dones)), infos[0]
        optional: dict[str, Any] = {}
        if self.record.has_windows:
            optional["episode_starts"] = self.rng.random(self.buffer.n_envs) < 0.2
        elif self.buffer.settings.initial_priority == "td_error" and self.rng.random() < 0.5:
            optional["td_errors"] = self.rng.exponential(size=self.buffer.n_envs)
        starts = optional.get("episode_starts")
        after = self.record.copy().add(dones[0], starts=starts)
        # The episodes that the step does not continue end before it is stored.
        cut = self.record.copy().end_episodes([] if starts is None else np.flatnonzero(starts).tolist())
        return Move(lambda: self.buffer.add(*arguments, **optional), [cut, after])

    def extend(self) -> Move:
        n_steps = int(self.rng.integers(1, 4))
        obs, next_obs, actions, rewards, dones, _, infos = self.steps(n_steps)
        masses = self.rng.exponential(size=(n_steps, self.buffer.n_envs)) + 0.1
        if self.buffer.scheme.draws_uniformly:
            masses = None
        records = [self.record.copy()]
        for row in dones:
            records.append(records[-1].copy().add(row))
        return Move(lambda: self.buffer.extend(obs, next_obs, actions, rewards, dones, infos, masses), records)

    def append_rows(self) -> Move:
        n_steps = int(self.rng.integers(1, self.buffer.buffer_size + 3))
        *parts, _ = self.steps(n_steps)
        td_errors = self.rng.exponential(size=n_steps) if self.rng.random() < 0.5 else None
        if self.buffer.scheme.draws_uniformly:
            td_errors = None
        cut = self.record.copy().end_episodes()
        after = cut.copy()
        for row in parts[4]:
            after.add(row)
        after.end_episodes()
        arguments = [_at(part, (slice(None), 0)) for part in parts]
        return Move(lambda: self.buffer.append_rows(*arguments, td_errors), [cut, after])

    def end_episodes(self) -> Move:
        return Move(self.buffer.end_episodes, [self.record.copy().end_episodes()])

    def truncate_last_trajectory(self) -> Move:
        return Move(self.buffer.truncate_last_trajectory, [self.record.copy().end_episodes()])

    def reset(self) -> Move:
        return Move(self.buffer.reset, [self.record.copy().reset()])

    def set_pos(self) -> Move:
        pos = int(self.rng.integers(self.buffer.buffer_size))
        return self._stand_at("pos", pos, pos + self.buffer.buffer_size * self.buffer.full)

    def set_full(self) -> Move:
        is_full = not self.buffer.full
        return self._stand_at("full", is_full, self.buffer.pos + self.buffer.buffer_size * is_full)

    def _stand_at(self, name: str, value: Any, n_steps: int) -> Move:
        if getattr(self.buffer, name) == value:  # nobody can notice that it was set
            return Move(lambda: None, [self.record])
        after = self.record.copy()
        ends = (self.buffer.dones != 0) | (self.buffer.timeouts != 0)
        after.stand_at(n_steps, np.tile(ends, (2, 1)))
        return Move(lambda: setattr(self.buffer, name, value), [after])

    def add_demonstrations(self) -> Move:
        n_steps = int(self.rng.integers(1, 4))
        obs, next_obs, actions, rewards, dones, _, infos = self.steps(n_steps)
        after = self.record.copy()
        after.n_demonstrations += n_steps * self.buffer.n_envs
        return Move(lambda: self.buffer.add_demonstrations(obs, next_obs, actions, rewards, dones, infos), [after])

    # ---- drawing and updating

    def _can_draw(self) -> bool:
        return bool(self.record.drawable_ids()) or self.record.n_demonstrations > 0

    def sample(self) -> Move:
        return self._draw(self.buffer.sample, assert_batch_as_recorded)

    def sample_observations(self) -> Move:
        return self._draw(self.buffer.sample_observations, lambda batch, record: None)

    def _draw(self, draw: Callable[[int], Any], check: Callable[[Any, Record], None]) -> Move:
        def call() -> Any:
            if self._can_draw():
                batch = draw(6)
                check(batch, self.record)
                return batch
            with pytest.raises((ValueError, RuntimeError), match=r"[Cc]annot sample|Unable to sample"):
                draw(6)
            return None

        return Move(call, [self.record])

    def update_priorities(self) -> Move:
        # Some of the ids are stale, or belong to transitions that cannot be drawn.
        issued = [step * self.buffer.n_envs + env for env, ends in enumerate(self.record.ends) for step in range(len(ends))]
        ids = self.rng.choice(issued, size=5) if issued else np.empty(0, np.int64)
        length = getattr(self.buffer, "sequence_length", None)
        errors = self.rng.exponential(size=len(ids) if length is None else (length, len(ids))) + 0.1
        return Move(lambda: self.buffer.update_priorities(ids, errors), [self.record])

    # ---- another buffer in its place

    def copy(self) -> Move:
        return self._replace(lambda buffer: pickle.loads(pickle.dumps(buffer)))

    def save_and_load(self) -> Move:
        def again(buffer: Any) -> Any:
            save_buffer(buffer, self.folder / "saved.buffer")
            return load_buffer(buffer, self.folder / "saved.buffer")

        return self._replace(again)

    def convert(self) -> Move:
        return self._replace(lambda buffer: type(buffer).from_replay_buffer(buffer))

    def _replace(self, again: Callable[[Any], Any]) -> Move:
        """Go on with a buffer that holds the same, with the same ids and masses."""

        def call() -> None:
            made = again(self.buffer)
            if self.record.has_episodes:
                made.env = self.buffer.env  # a pickle does not hold it
            np.testing.assert_array_equal(made.transition_ids, self.buffer.transition_ids)
            self.buffer = made

        return Move(call, [self.record])


def _stacked(parts: Any) -> Any:
    """Put the time axis first."""
    if isinstance(parts[0], dict):
        return {key: np.stack([part[key] for part in parts]) for key in parts[0]}
    return np.stack(parts)


def _at(part: Any, index: Any) -> Any:
    return {key: value[index] for key, value in part.items()} if isinstance(part, dict) else part[index]
