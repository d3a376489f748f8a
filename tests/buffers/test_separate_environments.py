"""Columns with cursors of their own: a buffer of several environments is one buffer for each, whatever comes in when."""

import copy
import tempfile
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from sb3_per.buffers.adding import AddingRing
from sb3_per.buffers.columns import Columns
from sb3_per.buffers.draw_record import DrawRecord
from sb3_per.buffers.drawable import DrawableRing

import sb3_per.persistence.buffer_files as buffer_files
from sb3_per import (
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.monitoring.monitor import statistics
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.storage.frames import FrameStore
from tests.test_hot_path import python_work
from tests.utils import assert_same_state, make_buffer

N_ROWS, N_ENVS = 7, 3
VECTOR, IMAGE = spaces.Box(-9, 9, (2,), np.float32), spaces.Box(0, 255, (2, 3, 3), np.uint8)
ACTION = spaces.Box(-1, 1, (2,), np.float32)

pytestmark = pytest.mark.filterwarnings("ignore:10 batches were drawn")

#: Observation space and settings of a buffer.
KINDS: dict[str, tuple[spaces.Space, dict[str, Any]]] = {
    "plain": (VECTOR, {}),
    "windows": (VECTOR, dict(n_steps=3, gamma=0.9, beta_anneal_steps=10)),
    "td_error": (VECTOR, dict(initial_priority="td_error", scheme="lap", n_steps=2)),
    "rank": (VECTOR, dict(scheme="rank", n_steps=2)),
    "memory": (VECTOR, dict(optimize_memory_usage=True, handle_timeout_termination=False, n_steps=2)),
    "frames": (IMAGE, dict(frames=2, n_steps=2)),
    "dict": (spaces.Dict({"image": IMAGE, "vector": VECTOR}), dict(frames=dict(image=2))),
}


def make(kind: str, n_envs: int = N_ENVS, n_rows: int = N_ROWS, **kwargs: Any) -> PrioritizedReplayBuffer:
    space, settings_ = KINDS[kind]
    cls = PrioritizedDictReplayBuffer if isinstance(space, spaces.Dict) else PrioritizedReplayBuffer
    return cls(n_rows * n_envs, space, ACTION, device="cpu", n_envs=n_envs, **{**settings_, **kwargs})


class Column:
    """What one environment gives: an observation goes on where the one before ended, but for the end of an episode."""

    def __init__(self, space: spaces.Space, seed: int):
        self.space, self.rng = space, np.random.default_rng(seed)
        self.obs = self.observation(space)

    def observation(self, space: spaces.Space, before: Any = None) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self.observation(part, before and before[key]) for key, part in space.spaces.items()}
        if space is VECTOR:
            return self.rng.normal(size=2).astype(np.float32)
        frame = self.rng.integers(0, 256, (1, 3, 3)).astype(np.uint8)
        return np.concatenate([np.zeros_like(frame) if before is None else before[1:], frame])

    def step(self) -> tuple[Any, ...]:
        obs, next_obs = self.obs, self.observation(self.space, self.obs)
        done = bool(self.rng.random() < 0.2)
        timeout = done and bool(self.rng.random() < 0.5)
        self.obs = self.observation(self.space) if done else next_obs
        return obs, next_obs, self.rng.uniform(-1, 1, 2), self.rng.normal(), done, timeout, self.rng.normal(size=2)


def stacked(parts: Any) -> Any:
    """Nested lists of observations, as arrays with the same first axes; nobody may write to them."""
    first = parts[0][0]
    if isinstance(first, dict):
        return {key: stacked([[part[key] for part in row] for row in parts]) for key in first}
    array = np.array(parts)
    array.flags.writeable = False
    return array


class Twins:
    """
    A buffer whose columns stand where they like, and the obvious reference: an ordinary buffer for each of them.

    :param kind: of the buffers
    :param seed: of all that comes
    """

    def __init__(self, kind: str, seed: int = 0, **kwargs: Any):
        self.kind, self.buffer = kind, make(kind, **kwargs)
        self.alone = [make(kind, 1, **kwargs) for _ in range(N_ENVS)]
        self.rng = np.random.default_rng(seed)
        self.columns = [Column(self.buffer.observation_space, seed * N_ENVS + env) for env in range(N_ENVS)]
        self.n_before = np.zeros(N_ENVS, np.int64)  # steps of the buffer that are none of the reference's
        self.with_errors = kind == "td_error"

    def add_steps(self, envs: list[int], n_steps: int) -> None:
        chunk = [[self.columns[env].step() for env in envs] for _ in range(n_steps)]
        obs, next_obs, actions, rewards, dones, timeouts, errors = (
            stacked([[step[i] for step in row] for row in chunk]) for i in range(7)
        )
        given_errors = errors if self.with_errors and self.rng.random() < 0.7 else None
        self.buffer.add_steps(np.array(envs), obs, next_obs, actions, rewards, dones, timeouts, given_errors)
        for row in chunk:
            for env, step in zip(envs, row, strict=True):
                self.add_alone(env, step, None if given_errors is None else step[6][None])

    def add(self) -> None:
        """One step of all, in SB3's way."""
        steps = [column.step() for column in self.columns]
        obs, next_obs, action, reward, done, timeout, _ = (stacked([[step[i] for step in steps]]) for i in range(7))
        infos = [{"TimeLimit.truncated": bool(flag)} for flag in timeout[0]]
        obs, next_obs = ({k: v[0] for k, v in o.items()} if isinstance(o, dict) else o[0] for o in (obs, next_obs))
        self.buffer.add(obs, next_obs, action[0], reward[0], done[0], infos)
        for env, step in enumerate(steps):
            self.add_alone(env, step)

    def add_alone(self, env: int, step: tuple[Any, ...], errors: Any = None) -> None:
        obs, next_obs, action, reward, done, timeout, _ = step
        obs, next_obs = ({k: v[None] for k, v in o.items()} if isinstance(o, dict) else o[None] for o in (obs, next_obs))
        infos = [{"TimeLimit.truncated": timeout}]
        self.alone[env].add(obs, next_obs, action[None], np.array([reward]), np.array([done]), infos, errors)

    def cut(self, envs: list[int]) -> None:
        self.buffer.cut_columns(np.array(envs))
        for env in envs:
            self.alone[env].end_episodes()

    def update(self) -> None:
        """Of ids of all ages: stale ones are skipped, in each column by its own cursor."""
        steps = self.buffer.column_steps
        if not steps.any():
            return
        envs = self.rng.choice(np.flatnonzero(steps), 8)
        back = np.minimum(self.rng.integers(1, 2 * N_ROWS, 8), steps[envs])
        errors = self.rng.normal(size=(8, 2)) * 3
        n_written = self.buffer.update_priorities((steps[envs] - back) * N_ENVS + envs, errors)
        n_alone = 0
        for alone in self.alone:
            alone._settle()
        for env, alone in enumerate(self.alone):
            ids = (steps[envs] - back - self.n_before[env])[envs == env]
            is_known = ids >= 0  # others were given before a reset
            n_alone += alone.update_priorities(ids[is_known], errors[envs == env][is_known])
        assert n_written == n_alone
        self.share_maximum()

    def share_maximum(self) -> None:
        for alone in self.alone:
            alone.max_priority = max(each.max_priority for each in self.alone)

    def reset(self) -> None:
        for buffer in (self.buffer, *self.alone):
            buffer.reset()
        self.n_before = self.buffer.column_steps - [alone.column_steps[0] for alone in self.alone]

    def save(self, path: Path) -> None:
        save_buffer(self.buffer, path)
        loaded = load_buffer(self.buffer, path)
        if self.rng.random() < 0.5:
            self.buffer = loaded
        elif self.rng.random() < 0.5:
            self.buffer.take_over(loaded)
        else:
            self.check(loaded)

    def copy(self) -> None:
        self.buffer = cloudpickle.loads(cloudpickle.dumps(self.buffer))

    # ---- what has to be so

    def check(self, buffer: PrioritizedReplayBuffer | None = None) -> None:
        buffer = self.buffer if buffer is None else buffer
        sizes = [alone.size() for alone in self.alone]
        ids, masses = buffer.transition_ids, buffer.priorities
        np.testing.assert_array_equal(buffer.column_steps, [alone.column_steps[0] for alone in self.alone] + self.n_before)
        assert buffer.size() == min(sizes) and buffer.max_priority == self.alone[0].max_priority
        for env, alone in enumerate(self.alone):
            expected = alone.transition_ids[:, 0]
            expected = np.where(expected < 0, -1, (expected + self.n_before[env]) * N_ENVS + env)
            np.testing.assert_array_equal(ids[:, env], expected)
            if self.kind != "rank":  # whose masses are relative
                np.testing.assert_array_equal(masses[:, env], alone.priorities[:, 0])
            else:
                np.testing.assert_array_equal(masses[:, env] > 0, alone.priorities[:, 0] > 0)
            rows = np.flatnonzero(alone.priorities[:, 0])
            ones = np.ones((len(rows), 1), np.float32)
            batch, one = buffer._gather(rows * N_ENVS + env, ones, None), alone._gather(rows, ones, None)
            for name in ("observations", "actions", "next_observations", "dones", "rewards", "discounts"):
                same(getattr(batch, name), getattr(one, name))
            np.testing.assert_array_equal(batch.indices, expected[rows])
        drawable = np.flatnonzero(masses)
        assert buffer._n_drawable == len(drawable) == sum(alone._n_drawable for alone in self.alone) == buffer._n_with_mass
        np.testing.assert_array_equal(np.sort(buffer._drawable_leaves(len(drawable))(np.arange(len(drawable)))), drawable)
        if len(drawable):
            self.check_draw(buffer, ids, masses)

    def check_draw(self, buffer: PrioritizedReplayBuffer, ids: np.ndarray, masses: np.ndarray) -> None:
        beta, batch = buffer.beta, buffer.sample(6)
        leaves = batch.indices % ids.size
        np.testing.assert_array_equal(ids.ravel()[leaves], batch.indices)
        n_p = masses.ravel()[leaves] / masses.sum() * np.count_nonzero(masses)
        assert (n_p > 0).all()
        if buffer.scheme.importance_sampling:
            np.testing.assert_allclose(batch.weights.numpy().ravel(), (n_p / n_p.min()) ** -beta, rtol=1e-5)
        same(batch.observations, buffer._gather(leaves, np.ones((6, 1), np.float32), None).observations)


def same(actual: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        for key in expected:
            same(actual[key], expected[key])
    elif expected is None:
        assert actual is None
    else:
        assert actual.dtype == expected.dtype
        np.testing.assert_array_equal(actual.numpy(), expected.numpy())


ENVS = st.lists(st.integers(0, N_ENVS - 1), min_size=1, max_size=N_ENVS, unique=True)
ACTIONS = st.one_of(
    st.tuples(st.just("add_steps"), ENVS, st.integers(1, N_ROWS)),
    st.tuples(st.just("add_steps"), ENVS, st.integers(1, 3)),
    st.tuples(st.sampled_from(["add", "update", "update", "save", "copy", "check", "check", "reset"])),
    st.tuples(st.just("cut"), ENVS),
)


def live(twins: Twins, actions: list[tuple[Any, ...]], folder: Path) -> None:
    for name, *arguments in actions:
        if name == "save":
            arguments = [folder / "it.buffer"]
        getattr(twins, name)(*arguments)
    twins.check()


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(ACTIONS, min_size=5, max_size=25), st.integers(0, 99))
@settings(max_examples=15, deadline=None)
def test_a_buffer_of_columns_is_one_buffer_a_column(kind, actions, seed):
    with tempfile.TemporaryDirectory() as folder:
        live(Twins(kind, seed), actions, Path(folder))


# What every defect below is seen by: laps, cuts, files again and again, and columns that are more than a lap apart.
STORY: list[tuple[Any, ...]] = [
    ("add",),
    ("add_steps", [0, 1], 3),
    ("update",),
    ("cut", [1]),
    ("save",),
    ("add_steps", [0, 1], 2),
    ("check",),
    ("add_steps", [2], 4),
    ("update",),
    ("save",),
    *[("add_steps", [0], 5), ("update",), ("check",)] * 4,
    ("add_steps", [1, 2], 6),
    ("cut", [0]),
    ("save",),
    ("add_steps", [0, 1], 1),
    ("update",),
    ("reset",),
    ("add_steps", [1], 2),
    ("update",),
    ("add_steps", [0, 2], 6),
    ("save",),
    ("check",),
    ("add",),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_a_story(kind, seed, tmp_path):
    live(Twins(kind, seed), STORY, tmp_path)


def with_shared_oldest(init: Any) -> Any:
    def defective(self: Columns, *args: Any) -> None:
        init(self, *args)
        self.oldest = np.full_like(self.oldest, self.oldest.max())

    return defective


def with_errors_in_the_maximum(note: Any) -> Any:
    def defective(self: Any, ids: np.ndarray, masses: np.ndarray) -> None:
        note(self, ids, masses)
        self.max_priority = max(self.max_priority, float(masses.max()))

    return defective


#: Class, name of what decides, what stands in its place, and the kind of buffer that is asked.
DEFECTS: dict[str, tuple[Any, str, Any, str]] = {
    "staleness of all columns by one of them": (Columns, "__init__", with_shared_oldest, "plain"),
    "windows end at the cursor of the shortest": (
        Columns,
        "n_behind",
        lambda old: lambda self, leaves: (self.least - 1 - leaves // len(self.added)) % self.n_rows,
        "windows",
    ),
    "ids by one lap": (
        Columns,
        "ids_at",
        lambda old: lambda self, leaves: self.most // self.n_rows * self.n_rows * len(self.added) + leaves,
        "plain",
    ),
    "all are admitted again": (
        Columns,
        "leaves_between",
        lambda old: lambda self, first, end: old(self, self.first, end),
        "plain",
    ),
    "all columns are cut": (AddingRing, "_cut", lambda old: lambda self, envs: old(self, np.arange(self.n_envs)), "windows"),
    "none is cut": (
        AddingRing,
        "_truncate",
        lambda old: lambda self, rows, envs: old(self, rows, envs) if self.n_envs == 1 else None,
        "windows",
    ),
    "errors of actors raise the maximum": (DrawableRing, "_note_masses", with_errors_in_the_maximum, "td_error"),
    "a spoilt row is drawn": (
        DrawableRing,
        "_columns_now",
        lambda old: lambda self: copy.copy(old(self)).__class__(*list(vars(old(self)).values())[:4], 0),
        "memory",
    ),
    "what is not final is not written again": (
        buffer_files,
        "_end_of_final",
        lambda old: lambda buffer, contents: contents.end,
        "plain",
    ),
    "frames are given up by the newest column": (
        FrameStore,
        "_release",
        lambda old: lambda self, number: old(self, max(number, self._next_number - 8)),
        "frames",
    ),
    "frames of all columns by the last one": (
        FrameStore,
        "write",
        lambda old: lambda self, envs, rows, *obs: old(self, envs, np.full_like(rows, self._cursors[0, 0]), *obs),
        "frames",
    ),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_seen(name, tmp_path, monkeypatch):
    owner, attribute, change, kind = DEFECTS[name]
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    if owner is FrameStore:  # addresses of what was given up stay, as where nobody needs its memory
        roomy = FrameStore.__init__
        monkeypatch.setattr(FrameStore, "__init__", lambda self, *a: (roomy(self, *a), setattr(self, "_free", Scrubbed()))[0])
    with pytest.raises((AssertionError, ValueError, LookupError, KeyError)):
        for seed in range(4):
            live(Twins(kind, seed), STORY, tmp_path / str(seed))


class Scrubbed(list):
    """Memory that was given up is overwritten at once, and never used again."""

    def append(self, piece: np.ndarray) -> None:
        piece[:] = 123
        self.kept = [*getattr(self, "kept", []), piece]


# ---- equal cursors


def both_ways(**kwargs: Any) -> list[PrioritizedReplayBuffer]:
    """The same steps: step by step, in chunks of all columns, and column by column."""
    rng = np.random.default_rng(0)
    buffers = [make_buffer(8, N_ENVS, **kwargs) for _ in range(3)]
    has_errors = kwargs.get("initial_priority") == "td_error"
    space, envs = buffers[0].observation_space, np.arange(N_ENVS)
    for n_steps in (3, 1, 8, 2, 5):
        obs, next_obs = (rng.uniform(-1, 1, (n_steps, N_ENVS, *space.shape)).astype(space.dtype) for _ in range(2))
        actions, rewards = rng.uniform(-1, 1, (n_steps, N_ENVS, 2)), rng.normal(size=(n_steps, N_ENVS))
        dones = rng.random((n_steps, N_ENVS)) < 0.3
        timeouts = dones & (rng.random(dones.shape) < 0.5) & buffers[0].handle_timeout_termination
        errors = rng.normal(size=(n_steps, N_ENVS, 2)) if has_errors else None
        chunk = (obs, next_obs, actions, rewards, dones, timeouts)
        for t in range(n_steps):
            infos = [{"TimeLimit.truncated": bool(flag)} for flag in timeouts[t]]
            step_errors = None if errors is None else errors[t]
            buffers[0].add(obs[t], next_obs[t], actions[t], rewards[t], dones[t], infos, step_errors)
        buffers[1].add_steps(envs, *chunk, errors)
        for part in ([2], [0, 1]):
            part_errors = None if errors is None else errors[:, part]
            buffers[2].add_steps(np.array(part), *(array[:, part] for array in chunk), part_errors)
        ids = buffers[0].transition_ids
        ids = rng.choice(ids[ids >= 0], 6)
        td_errors = rng.normal(size=(6, 2))
        assert len({buffer.update_priorities(ids, td_errors) for buffer in buffers}) == 1
    return buffers


def contents_of(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """All that a buffer is. Frames lie in the pool in the order they came in, and are compared unpacked."""
    return {**vars(buffer), "observations": buffer.observations[:], "next_observations": _next_of(buffer)}


def _next_of(buffer: PrioritizedReplayBuffer) -> Any:
    return None if buffer.optimize_memory_usage else buffer.next_observations[:]


SETTINGS: list[dict[str, Any]] = [
    {},
    dict(n_steps=3),
    dict(scheme="rank"),
    dict(scheme="lap", kappa="auto", actor_batch="uniform"),
    dict(scheme="uniform", stratified=False),
    dict(initial_priority="td_error", unique=True),
    dict(initial_priority="mean", uniform_fraction=0.2),
    dict(recency=0.99, recency_min=3),
    dict(optimize_memory_usage=True, handle_timeout_termination=False),
    dict(obs_space="image", frames=2),
]


@pytest.mark.parametrize("kwargs", SETTINGS, ids=str)
def test_with_equal_cursors_it_is_the_ordinary_buffer(kwargs):
    buffers = both_ways(**kwargs)
    one, *others = buffers
    for other in others:
        assert other._apart is None
        assert_same_state(contents_of(other), contents_of(one))
    batches = []
    for buffer in buffers:
        np.random.seed(0)
        batches.append([(batch := buffer.sample(8)), buffer.update_priorities(batch.indices, th.ones(8, 1)), buffer.sample(8)])
        batches[-1].append(buffer.sample_observations(5))
    for batch in batches[1:]:
        same(batch[3], batches[0][3])
        for i in (0, 2):
            for actual, expected in zip(batch[i][:-1], batches[0][i][:-1], strict=True):
                same(actual, expected)
            np.testing.assert_array_equal(batch[i].indices, batches[0][i].indices)


# ---- settings of the draw, while columns stand apart


def apart(**kwargs: Any) -> PrioritizedReplayBuffer:
    twins = Twins("plain", **kwargs)
    for envs, n in (([0], 5), ([1, 2], 2), ([0], 7), ([1], 1)):
        twins.add_steps(envs, n)
    return twins.buffer


@pytest.mark.parametrize("scheme", ["proportional", "rank", "uniform"])
@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize(
    "kwargs", [{}, dict(uniform_fraction=0.5), dict(unique=True), dict(recency=0.999, recency_min=4)], ids=str
)
def test_draws_follow_the_masses(scheme, stratified, kwargs):
    buffer = apart(scheme=scheme, stratified=stratified, **kwargs)
    assert buffer._apart is not None
    ids = buffer.transition_ids
    ids = ids[ids >= 0]
    buffer.update_priorities(ids, np.arange(1.0, len(ids) + 1))
    masses = buffer.priorities
    n_newest = buffer._n_drawable
    assert n_newest == 7 + 3 + 2
    if "recency" in kwargs:
        n_newest = 4
        # Nothing came behind two or more steps of every column; one step came behind (0, newest - 1).
        newest = {(12 - 1) * 3 + 0, (3 - 1) * 3 + 1, (2 - 1) * 3 + 2, (2 - 2) * 3 + 2}
        assert set(buffer._ids_at(buffer._drawable_leaves(4)(np.arange(4))).tolist()) == newest
        masses[~np.isin(buffer.transition_ids, list(newest))] = 0.0
    expected = masses.ravel() / masses.sum()
    if "uniform_fraction" in kwargs and scheme != "uniform":
        expected = np.where(expected > 0, 0.5 * expected + 0.5 / n_newest, 0)
    np.random.seed(1)
    counts = np.zeros(masses.size)
    for _ in range(300):
        batch = buffer.sample(4, position=1.0 if "recency" in kwargs else None)
        if "unique" in kwargs:
            assert len(set(batch.indices.tolist())) == 4
        np.add.at(counts, batch.indices % masses.size, 1)
    assert (counts[expected == 0] == 0).all()
    if "unique" not in kwargs:
        np.testing.assert_allclose(counts / 1200, expected, atol=0.06)
    else:
        assert (counts > 0).sum() == 12
    observations = buffer.sample_observations(500).numpy()
    assert len(np.unique(observations, axis=0)) == 12


def test_newest_by_steps_behind_the_cursor_is_the_order_of_ids_where_cursors_are_equal():
    for n_rows, added in ((7, 5), (7, 20)):
        columns = Columns(np.full(3, added), np.full(3, added), 0, n_rows, 0)
        for n in range(1, columns.n_whole + 1):
            ids = columns.ids_at(columns.newest(n)(np.arange(n)))
            assert set(ids.tolist()) == set(range(added * 3 - n, added * 3))


def test_ages_are_those_of_the_column():
    """Of a column that stands behind, the newest step is as new as that of the others."""
    buffer = apart()
    buffer.draw_record = DrawRecord(buffer.buffer_size * N_ENVS)
    batch = buffer.sample(50)
    steps, envs = np.divmod(batch.indices, N_ENVS)
    expected = (buffer.column_steps[envs] - 1 - steps) * N_ENVS + N_ENVS - 1 - envs
    np.testing.assert_array_equal(statistics(buffer)[0]["age"], expected)
    assert expected.max() < N_ROWS * N_ENVS


def test_kappa_is_the_mean_reward_of_what_is_there():
    buffer = apart(scheme="lap", kappa="auto")
    buffer.sample(2)
    is_there = buffer.transition_ids >= 0
    assert buffer.scheme.kappa == pytest.approx(np.abs(buffer.rewards[is_there]).mean())
    assert buffer.rewards[~is_there].size > 0


def test_the_mean_mass_is_over_all_columns():
    buffer = apart(initial_priority="mean")
    ids = buffer.transition_ids
    ids = ids[ids >= 0]
    buffer.update_priorities(ids, np.arange(1.0, len(ids) + 1))
    before = buffer.priorities
    mean = before.sum() / np.count_nonzero(before)
    buffer.add_steps([2], np.zeros((2, 1, 2)), np.zeros((2, 1, 2)), np.zeros((2, 1, 2)), *np.zeros((3, 2, 1)))
    np.testing.assert_allclose(buffer.priorities[[2, 3], 2], mean)


@pytest.mark.parametrize("kind", KINDS)
def test_no_python_pass_over_steps_or_batches(kind):
    """For 12 times as many steps, 6 times as many draws, about as many Python instructions and calls are executed."""
    buffer, column = make(kind, 4, 4000), Column(KINDS[kind][0], 0)
    buffer.beta_anneal_steps = None  # whose end takes fewer
    steps = [[column.step() for _ in range(4)] for _ in range(20)]
    obs, next_obs = (stacked([[step[i] for step in row] for row in steps]) for i in range(2))
    work = []
    for n_steps, n_envs in ((3, 1), (19, 2)):
        given = [first(part, n_steps, n_envs) for part in (obs, next_obs)]
        errors = np.ones((n_steps, n_envs, 2)) if kind == "td_error" else None

        def cycle(given=given, n_steps=n_steps, n_envs=n_envs, errors=errors) -> None:
            buffer.add_steps(np.arange(n_envs), *given, **arrays(n_steps, n_envs), td_errors=errors)
            buffer.update_priorities(buffer.sample(n_steps * 3).indices, np.ones((n_steps * 3, 2)))

        cycle()
        assert buffer._apart is not None
        work.append(python_work(cycle))
    # Now and then, frames need another piece of memory; a pass over the steps would be many times as much.
    np.testing.assert_allclose(work[1], work[0], rtol=0.1)


def first(obs: Any, n_steps: int, n_envs: int) -> Any:
    if isinstance(obs, dict):
        return {key: first(part, n_steps, n_envs) for key, part in obs.items()}
    return np.array(obs[:n_steps, :n_envs])


def arrays(n_steps: int, n_envs: int) -> dict[str, np.ndarray]:
    flags = {name: np.zeros((n_steps, n_envs)) for name in ("rewards", "dones", "timeouts")}
    return {"actions": np.zeros((n_steps, n_envs, 2)), **flags}


# ---- files, and other settings


def test_unfinished_rows_are_written_again_and_others_are_not(tmp_path):
    twins, path = Twins("plain"), tmp_path / "it.buffer"
    twins.add_steps([0, 1, 2], 3)
    twins.save(path)
    finished = {file.name for file in path.glob("seg-*")}
    twins.add_steps([0], 2)
    twins.save(path)
    assert finished < {file.name for file in path.glob("seg-*")}
    twins.add_steps([1, 2], 2)
    twins.save(path)
    twins.check()


@pytest.mark.parametrize("frames", [None, 2])
def test_settings_change_while_columns_stand_apart(frames):
    twins = Twins("frames", frames=None if frames else 2)
    for envs, n in (([0], 6), ([1, 2], 2), ([0], 7)):
        twins.add_steps(envs, n)
    twins.buffer = PrioritizedReplayBuffer.from_replay_buffer(twins.buffer, frames=frames)
    twins.check()
    twins.add_steps([1], 4)
    twins.add_steps([2, 0], 3)
    twins.check()
    other = PrioritizedReplayBuffer.from_replay_buffer(twins.buffer, alpha=1.0)
    assert np.count_nonzero(other.priorities) == np.count_nonzero(twins.buffer.priorities)


# ---- errors


def chunk(n_steps: int = 2, n_envs: int = 1) -> dict[str, Any]:
    shape = (n_steps, n_envs)
    vectors = {name: np.zeros((*shape, 2)) for name in ("obs", "next_obs", "actions")}
    return {"envs": np.arange(n_envs), **vectors, **{name: np.zeros(shape) for name in ("rewards", "dones", "timeouts")}}


@pytest.mark.parametrize(
    "change, message",
    [
        (dict(envs=[3]), r"different integers in \[0, 3\), not \[3\]"),
        (dict(envs=[-1]), r"not \[-1\]"),
        (dict(envs=[0.0]), "different integers"),
        (dict(envs=[]), "different integers"),
        (dict(envs=[0, 1]), r"rewards of shape \(2, 1\) do not fit steps of 2 environments"),
        (dict(rewards=np.zeros(2)), r"rewards of shape \(2,\)"),
        (dict(obs=np.zeros((2, 1, 3))), r"obs of shape \(2, 1, 3\) do not fit 2 steps of 1 environments"),
        (dict(next_obs=np.zeros((1, 1, 2))), "next_obs of shape"),
        (dict(actions=np.zeros((2, 1, 1))), "actions of shape"),
        (dict(dones=np.zeros((2, 2))), "dones of shape"),
        (dict(timeouts=np.zeros(2)), "timeouts of shape"),
        (dict(td_errors=np.zeros((2, 1))), "initial_priority='td_error'"),
        (dict(td_errors=np.zeros((3, 1))), r"td_errors of shape \(3, 1\) do not fit rewards of shape \(2, 1\)"),
        (chunk(8), "8 steps at once do not fit a buffer of 7 rows"),
        ({**chunk(2, 2), "envs": [1, 1]}, "different integers"),
    ],
    ids=str,
)
def test_what_is_refused_changes_nothing(change, message):
    twins = Twins("plain")
    twins.add_steps([0, 1], 3)
    before = copy.deepcopy(twins.buffer)
    with pytest.raises(ValueError, match=message):
        twins.buffer.add_steps(**{**chunk(), **change})
    assert_same_state(vars(twins.buffer), vars(before))
    with pytest.raises(ValueError, match="different integers"):
        twins.buffer.cut_columns([0, 0])


def test_no_steps():
    buffer = apart()
    before = copy.deepcopy(buffer)
    buffer.add_steps(**chunk(0))
    assert_same_state(vars(buffer), vars(before))


def test_errors_that_are_no_numbers():
    buffer = make("td_error")
    with pytest.raises(ValueError, match="must be finite, not nan"):
        buffer.add_steps(**chunk(), td_errors=np.array([[1.0], [np.nan]]))
    assert buffer.column_steps.tolist() == [0, 0, 0]


def test_ids_are_valid_by_column():
    twins = Twins("plain")
    twins.add_steps([0], 5)
    twins.add_steps([1], 2)
    for step, env in ((5, 0), (2, 1), (0, 2), (-1, 0)):
        with pytest.raises(IndexError, match=f"id {step * 3 + env} was never issued"):
            twins.buffer.update_priorities(np.array([0, step * 3 + env]), np.ones(2))
    with pytest.raises(ValueError, match=r"not inf \(transition id 4\)"):
        twins.buffer.update_priorities(np.array([0, 4]), np.array([0.0, np.inf]))
    assert twins.buffer.update_priorities(np.array([12, 4]), np.ones(2)) == 2


def test_a_column_that_never_got_anything():
    twins = Twins("frames")
    twins.cut([0, 1, 2])
    for _ in range(3):
        twins.add_steps([1], 6)
        twins.check()
    assert twins.buffer.size() == 0 and twins.buffer.frames_per_transition >= 1.0
    twins.buffer.sample(3)


def test_a_buffer_that_stands_apart_becomes_one_that_does_not():
    buffer, other = apart(), make("plain")
    other.add_steps(**chunk(2, 3))
    buffer.take_over(other)
    assert buffer.column_steps.tolist() == [2, 2, 2] and buffer.size() == 2
    buffer.sample(2)


def test_by_hand_while_columns_stand_apart():
    buffer = apart()
    buffer.pos += 1
    with pytest.raises(RuntimeError, match="by hand, and columns stand apart"):
        buffer.sample(2)
    buffer.pos, buffer.full = 0, False  # emptied
    assert (buffer.transition_ids == -1).all() and buffer.column_steps.tolist() == [14, 14, 14]


def test_what_does_not_go_together():
    goals = spaces.Dict({key: VECTOR for key in ("observation", "achieved_goal", "desired_goal")})
    her = PrioritizedHerReplayBuffer(30, goals, ACTION, device="cpu", n_envs=3, env=None)
    sequences = PrioritizedSequenceReplayBuffer(30, VECTOR, ACTION, device="cpu", n_envs=3, sequence_length=2, burn_in=0)
    for buffer, what in ((her, "hindsight"), (sequences, "sequences")):
        with pytest.raises(NotImplementedError, match=what):
            buffer.add_steps(**chunk())
        with pytest.raises(NotImplementedError, match=what):
            buffer.cut_columns([0])
    with pytest.raises(NotImplementedError, match="sequences"):
        PrioritizedSequenceReplayBuffer.from_replay_buffer(apart(), sequence_length=2, burn_in=0)


def test_observations_are_copied():
    """An actor's memory may be used again, also where the store of frames compares with the step before."""
    for kind in ("plain", "frames"):
        twins = Twins(kind)
        twins.add_steps([0, 1], 2)
        parts = [np.random.default_rng(i).integers(1, 9, (3, 2, *twins.buffer.obs_shape)).astype(np.uint8) for i in (0, 1)]
        expected = [part.copy() for part in parts]
        twins.buffer.add_steps(**{**chunk(3, 2), "obs": parts[0], "next_obs": parts[1]})
        for part in parts:
            part[:] = 77
        twins.buffer.add_steps(**{**chunk(1, 2), "obs": expected[1][-1:], "next_obs": expected[0][:1]})
        np.testing.assert_array_equal(twins.buffer.observations[2:5, :2], expected[0])
        np.testing.assert_array_equal(twins.buffer.next_observations[2:5, :2], expected[1])
        np.testing.assert_array_equal(twins.buffer.observations[5, :2], expected[1][-1])
