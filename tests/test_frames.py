"""Frames stored once, against a plain twin with the same adds and seeds: the same bytes come out, whatever comes in."""

import copy
import inspect
import pickle
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecNormalize, VecTransposeImage

from sb3_per import (
    PERDQN,
    PERSAC,
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
)
from sb3_per.buffers.frames import FrameStore, stack_axis

ACTIONS = spaces.Discrete(3)
# Shape of a frame, and where frames are stacked: first axis (channels first), last axis, or an axis of their own.
FORMS: dict[str, tuple[tuple[int, ...], str]] = {
    "channels first": ((1, 3, 5), "first"),
    "three channels first": ((3, 5, 5), "first"),
    "channels last": ((6, 5, 1), "last"),
    "vector": ((3,), "last"),
    "matrix": ((4, 2), "last"),
    "new axis": ((2, 3), "new"),
}
DTYPES = (np.uint8, np.bool_, np.float32, np.float64)


def stacked(frames: list[np.ndarray], how: str) -> np.ndarray:
    """One observation of several frames."""
    if how == "new":
        return np.stack(frames)
    return np.concatenate(frames, axis=0 if how == "first" else -1)


def shape_of(form: str, k: int) -> tuple[int, ...]:
    frame, how = FORMS[form]
    return stacked([np.zeros(frame)] * k, how).shape


class Stream:
    """
    Stacks of frames of several environments, with all that goes wrong in them: episodes that are shorter than a stack, padding
    of any kind, restarts without a done, a bit altered in a terminal observation, data that are no stacks at all.
    """

    def __init__(self, form: str, k: int, dtype: Any, n_envs: int, seed: int, junk: bool = True):
        self.frame, self.how = FORMS[form]
        self.k, self.dtype, self.n_envs, self.junk = k, np.dtype(dtype), n_envs, junk
        self.rng = np.random.default_rng(seed)
        self.stacks = [self.reset() for _ in range(n_envs)]

    def new_frame(self) -> np.ndarray:
        """Any bytes: NaN with payloads, infinities and -0.0 among the floats."""
        n_bytes = int(np.prod(self.frame)) * self.dtype.itemsize
        if self.rng.random() < 0.1:
            return np.zeros(self.frame, self.dtype)
        if self.dtype == np.bool_:
            return self.rng.random(self.frame) < 0.5
        if self.rng.random() < 0.1 and self.dtype.kind == "f":
            return np.full(self.frame, -0.0, self.dtype)
        return np.frombuffer(self.rng.bytes(n_bytes), self.dtype).reshape(self.frame)

    def reset(self) -> list[np.ndarray]:
        first = self.new_frame()
        kind = self.rng.integers(3)
        padding = [np.zeros_like(first), first, self.new_frame()][kind]
        return [padding] * (self.k - 1) + [first]

    def step(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        obs = np.stack([stacked(frames, self.how) for frames in self.stacks])
        nexts, dones, infos = [], [], []
        for e in range(self.n_envs):
            following = [*self.stacks[e][1:], self.new_frame()]
            kind = self.rng.random()
            done = kind < 0.15
            following_obs = stacked(following, self.how)
            if self.junk and done and self.rng.random() < 0.3:  # one bit of the terminal observation
                following_obs = following_obs.copy()
                following_obs.reshape(-1).view(np.uint8)[self.rng.integers(following_obs.nbytes)] ^= 1
            elif self.junk and 0.15 <= kind < 0.2:
                following_obs = stacked([self.new_frame() for _ in range(self.k)], self.how)
            nexts.append(following_obs)
            dones.append(done)
            infos.append({"TimeLimit.truncated": bool(done and self.rng.random() < 0.5)})
            restarts = done or (self.junk and self.rng.random() < 0.05)
            self.stacks[e] = self.reset() if restarts else following
        return obs, np.stack(nexts), np.array(dones), infos


def add(buffers: Any, stream: Stream, n_steps: int) -> None:
    for _ in range(n_steps):
        obs, next_obs, dones, infos = stream.step()
        action, reward = stream.rng.integers(0, 3, (stream.n_envs, 1)), stream.rng.normal(size=stream.n_envs)
        for buffer in buffers:
            buffer.add(obs.copy(), next_obs.copy(), action, reward, dones, infos)


def same_bytes(actual: Any, expected: Any) -> None:
    """Of arrays, tensors or dictionaries; NaN with other payloads and -0.0 are other bytes."""
    if isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key in expected:
            same_bytes(actual[key], expected[key])
        return
    actual, expected = (np.ascontiguousarray(np.asarray(each)) for each in (actual, expected))
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype)
    assert actual.tobytes() == expected.tobytes()


def same_batches(framed: Any, plain: Any, n: int = 20, same_ids: bool = True) -> None:
    batches = []
    for buffer in (framed, plain):
        np.random.seed(n)
        batches.append(buffer.sample(n))
    for actual, expected in list(zip(*batches, strict=True))[: None if same_ids else -1]:
        if expected is not None:
            same_bytes(actual, expected)
    for buffer, batch in zip((framed, plain), batches, strict=True):
        buffer.update_priorities(batch.indices, np.random.default_rng(n).exponential(size=n))


def twins(form: str, k: int, dtype: Any, n_rows: int, n_envs: int, **kwargs: Any) -> tuple[Any, Any]:
    dtype = np.dtype(dtype)
    low, high = (0, 255) if dtype == np.uint8 else (0, 1) if dtype == np.bool_ else (-np.inf, np.inf)
    space = spaces.Box(low, high, shape_of(form, k), dtype)
    arguments = (n_rows * n_envs, space, ACTIONS, "cpu", n_envs)
    return PrioritizedReplayBuffer(*arguments, frames=k, **kwargs), PrioritizedReplayBuffer(*arguments, **kwargs)


@settings(max_examples=80)
@given(data=st.data())
def test_a_plain_twin(data):
    """All of the buffer, and batches, by bytes; through at least three laps, resets, copies and restarts."""
    form, k = data.draw(st.sampled_from(list(FORMS))), data.draw(st.integers(1, 4))
    dtype, n_envs = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(1, 4))
    n_rows, n_steps = data.draw(st.integers(1, 12)), data.draw(st.sampled_from([1, 2, 3, 5]))
    junk = data.draw(st.booleans())
    framed, plain = twins(form, k, dtype, n_rows, n_envs, n_steps=n_steps)
    stream = Stream(form, k, dtype, n_envs, data.draw(st.integers(0, 10**6)), junk)
    for _ in range(4):
        add((framed, plain), stream, n_rows)
        for name in ("observations", "next_observations"):
            stored, expected = getattr(framed, name), getattr(plain, name)
            assert (stored.shape, stored.dtype, len(stored), stored.ndim) == (
                expected.shape,
                expected.dtype,
                len(expected),
                expected.ndim,
            )
            same_bytes(stored[:], expected)
        same_batches(framed, plain)
        operation = data.draw(st.sampled_from(["nothing", "reset", "pickle", "deepcopy", "end", "few"]))
        if operation == "reset":
            framed.reset()
            plain.reset()
        elif operation == "pickle":
            framed = pickle.loads(pickle.dumps(framed))
        elif operation == "deepcopy":
            original, framed = framed, copy.deepcopy(framed)
            add([original], Stream(form, k, dtype, n_envs, 1), 2)  # shares nothing
        elif operation == "end":
            framed.end_episodes()
            plain.end_episodes()
        elif operation == "few":
            add((framed, plain), stream, 1)
    assert framed.frames_per_transition <= 2 * k + 2 * k / n_rows


@pytest.mark.parametrize(
    "index",
    [
        0,
        -1,
        slice(2, 5),
        [1, 1, 3],
        (2, 1),
        (slice(None), 0),
        ([0, 3], [1, 0]),
        ([0, 3], [1, 0], slice(None)),
        (slice(None), slice(None), 0),
        (2, 1, slice(None), 2),
        ...,
        (..., 1),
    ],
)
def test_indices(index):
    framed, plain = twins("channels first", 3, np.uint8, 6, 2)
    add((framed, plain), Stream("channels first", 3, np.uint8, 2, 0), 8)
    for name in ("observations", "next_observations"):
        same_bytes(getattr(framed, name)[index], getattr(plain, name)[index])
    same_bytes(np.asarray(framed.observations), plain.observations)


def test_views_are_read_only_and_copies():
    framed, _ = twins("channels first", 3, np.uint8, 6, 2)
    stream = Stream("channels first", 3, np.uint8, 2, 0)
    add([framed], stream, 8)
    before = framed.observations[:]
    for index in (slice(0, 2), [1], (0, 1)):
        with pytest.raises(TypeError, match="through add"):
            framed.observations[index] = 0
    batch = framed.sample(10)
    batch.observations[:] = 7
    framed.observations[:][:] = 7
    obs, next_obs, dones, infos = stream.step()
    framed.add(obs, next_obs, np.zeros((2, 1)), np.zeros(2), dones, infos)
    expected = framed.observations[1], framed.next_observations[1]
    obs[:] = next_obs[:] = 9  # the caller's arrays
    same_bytes(framed.observations[2 - 1], expected[0])
    same_bytes(framed.observations[[3, 4, 5]], before[[3, 4, 5]])


@pytest.mark.parametrize("length", [1, 3, 40])
@pytest.mark.parametrize("padding", ["zeros", "repeats"])
def test_frames_per_transition(padding, length):
    """1 + 1 / L for episodes of L steps, whatever the padding; each environment has its own."""
    k, n_envs = 4, 3
    framed, plain = twins("channels first", k, np.uint8, 240, n_envs)
    rng = np.random.default_rng(0)

    def new() -> np.ndarray:
        return rng.integers(1, 255, (1, 3, 5)).astype(np.uint8)

    for _ in range(3 * 240 // length):
        stacks = []
        for _ in range(n_envs):
            first = new()
            stacks.append([first if padding == "repeats" else first * 0] * (k - 1) + [first])
        for step in range(length):
            following = [[*stack[1:], new()] for stack in stacks]
            obs, next_obs = (np.stack([stacked(s, "first") for s in each]) for each in (stacks, following))
            done = np.full(n_envs, step == length - 1)
            for buffer in (framed, plain):
                buffer.add(obs, next_obs, np.zeros((n_envs, 1)), np.zeros(n_envs), done, [{}] * n_envs)
            stacks = following
    same_bytes(framed.observations[:], plain.observations)
    # Beside what the rows refer to: frames of the steps just before the oldest row.
    assert framed.frames_per_transition <= 1 + 1 / length + 2 * k / 240


def test_memory_is_bounded_and_recycled():
    """After many laps no more than after three; nothing that is wanted lies in a piece that is used again."""
    framed, plain = twins("channels first", 4, np.uint8, 64, 2)
    stream = Stream("channels first", 4, np.uint8, 2, 0, junk=False)
    add((framed, plain), stream, 3 * 64)
    store = framed.observations.store
    held = store.nbytes
    for _ in range(30):
        add((framed, plain), stream, 50)
        same_bytes(framed.observations[:], plain.observations)
        same_bytes(framed.next_observations[:], plain.next_observations)
    assert store.nbytes <= held * 1.25
    assert min(store._segments) > 10
    lowest = min(number for number in store._references[store._references < 2**32 - 1].tolist())
    assert lowest >= store._oldest_number >= min(store._segments) << store._shift
    assert framed.observations.nbytes + framed.next_observations.nbytes == store.nbytes


def test_numbers_run_over_the_end_of_their_bits():
    """After 2^32 frames: the same bytes, and no frame has the reference of the zero frame."""
    framed, plain = twins("channels first", 2, np.uint8, 16, 2)
    store = framed.observations.store
    start = 2**32 - 40
    store._next_number = store._oldest_number = start
    store._oldest_segment = start >> store._shift
    stream = Stream("channels first", 2, np.uint8, 2, 0)
    for _ in range(12):
        add((framed, plain), stream, 5)
        same_bytes(framed.observations[:], plain.observations)
        same_bytes(framed.next_observations[:], plain.next_observations)
    assert store._next_number > 2**32 + 50


def test_frozen_environments_keep_no_old_frames():
    """One whose frame never changes beside one that goes on: old pieces are given back."""
    framed, plain = twins("channels first", 4, np.uint8, 32, 2)
    rng = np.random.default_rng(0)
    frozen = np.full((1, 3, 5), 9, np.uint8)
    moving = [rng.integers(1, 255, (1, 3, 5)).astype(np.uint8) for _ in range(4)]
    for _ in range(400):
        following = [*moving[1:], rng.integers(1, 255, (1, 3, 5)).astype(np.uint8)]
        obs, next_obs = (np.stack([stacked([frozen] * 4, "first"), stacked(each, "first")]) for each in (moving, following))
        for buffer in (framed, plain):
            buffer.add(obs, next_obs, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}] * 2)
        moving = following
    same_bytes(framed.observations[:], plain.observations)
    assert framed.frames_per_transition < 1.3


def test_no_memory_for_another_piece(monkeypatch):
    """An error that names the size; the buffer is as it was, and goes on when there is memory."""
    framed, plain = twins("channels first", 4, np.uint8, 64, 2)
    stream = Stream("channels first", 4, np.uint8, 2, 0)
    add((framed, plain), stream, 5)
    before = pickle.dumps(framed.observations[:]), framed.pos, framed.priorities

    store, empty = framed.observations.store, np.empty

    def fail(shape: Any, *args: Any, **kwargs: Any) -> Any:
        if shape == store.frame_bytes << store._shift:
            raise MemoryError
        return empty(shape, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", fail)
        framed.observations.store._free.clear()
        failed = False
        for _ in range(40):
            obs, next_obs, dones, infos = stream.step()
            step = (obs, next_obs, np.zeros((2, 1)), np.zeros(2), dones, infos)
            try:
                framed.add(*step)
            except MemoryError as error:
                assert "MiB of frames" in str(error)
                failed = True
                break
            plain.add(*step)
        assert failed
    assert framed.pos == plain.pos
    same_bytes(framed.observations[: framed.pos], plain.observations[: plain.pos])
    framed.add(*step)
    plain.add(*step)
    add((framed, plain), stream, 100)
    same_bytes(framed.observations[:], plain.observations)
    assert before[1] < 64


# ---- which axis, and what is refused


@pytest.mark.parametrize(
    "shape, k, axis",
    [
        ((4, 84, 84), 4, 0),
        ((12, 64, 64), 4, 0),
        ((84, 84, 4), 4, 2),
        ((84, 84, 12), 4, 2),
        ((12,), 3, 0),
        ((10, 8), 4, 1),
        ((4, 7), 4, 0),
        ((4, 84, 84, 3), 4, 0),
        ((10, 10, 6), 1, 2),
        ((1, 84, 84), 1, 0),
        ((6, 10, 10), 3, 0),
    ],
)
def test_axis_of_the_stack(shape, k, axis):
    assert stack_axis(shape, k) == axis


IMAGE = spaces.Box(0, 255, (4, 6, 6), np.uint8)
DICT = spaces.Dict({"image": IMAGE, "vector": spaces.Box(-1, 1, (3,)), "number": spaces.Discrete(3)})


GOAL_DICT = spaces.Dict({"observation": IMAGE, "achieved_goal": IMAGE})
MEMORY = dict(optimize_memory_usage=True, handle_timeout_termination=False)


@pytest.mark.parametrize(
    "space, kwargs, error, value",
    [
        (IMAGE, dict(frames=5), ValueError, r"frames=5 divides neither .* \(4, 6, 6\)"),
        (IMAGE, dict(frames=0), ValueError, "at least 1, not 0"),
        (IMAGE, dict(frames=2.0), ValueError, r"not 2\.0"),
        (IMAGE, dict(frames=True), ValueError, "not True"),
        (IMAGE, dict(frames="auto"), ValueError, "needs the number of frames"),
        (IMAGE, dict(frames=dict(image=4)), ValueError, "does not fit observations of Box"),
        (IMAGE, dict(frames=4, **MEMORY), NotImplementedError, "optimize_memory_usage"),
        (DICT, dict(frames=4), ValueError, "does not fit observations of Dict: write e.g. "),
        (DICT, dict(frames=dict(picture=4)), ValueError, "'picture', which is not among"),
        (DICT, dict(frames=dict(number=1)), ValueError, "arrays, not Discrete"),
        (DICT, dict(frames=dict(vector=2)), ValueError, "frames=2 divides neither"),
        (spaces.Discrete(3), dict(frames=1), ValueError, "arrays, not Discrete"),
        (GOAL_DICT, dict(frames=dict(achieved_goal=4)), ValueError, "goals anew"),
    ],
)
def test_what_is_refused(space, kwargs, error, value):
    cls = PrioritizedDictReplayBuffer if isinstance(space, spaces.Dict) else PrioritizedReplayBuffer
    with pytest.raises(error, match=value):
        cls(10**12, space, ACTIONS, "cpu", **kwargs)  # before anything is allocated


@pytest.mark.parametrize("is_stack", [True, False])
def test_data_that_are_no_stacks_warn_once(is_stack):
    framed, plain = twins("channels first", 4, np.uint8, 50, 1)
    stream = Stream("channels first", 4, np.uint8, 1, 0, junk=False)
    rng = np.random.default_rng(0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2500):
            obs, next_obs, dones, infos = stream.step()
            if not is_stack:
                next_obs = rng.integers(0, 255, next_obs.shape).astype(np.uint8)
            for buffer in (framed, plain):
                buffer.add(obs, next_obs, np.zeros((1, 1)), np.zeros(1), dones, infos)
    said = [str(w.message) for w in caught if "shifted by one frame" in str(w.message)]
    assert len(said) == (not is_stack)
    same_bytes(framed.next_observations[:], plain.next_observations)


# ---- other buffers, and back


def dict_step(streams: dict[str, Stream], rng: Any, n_envs: int) -> tuple[Any, Any, np.ndarray, list[dict[str, Any]]]:
    parts = {key: stream.step() for key, stream in streams.items()}
    obs, next_obs = ({key: part[i] for key, part in parts.items()} for i in (0, 1))
    for each in (obs, next_obs):
        each["vector"] = rng.normal(size=(n_envs, 3)).astype(np.float32)
    return obs, next_obs, parts["image"][2], parts["image"][3]


@pytest.mark.parametrize("n_steps", [1, 2, 3, 5])
def test_dictionaries(n_steps):
    """Some keys in frames, of different numbers, others in arrays."""
    box = spaces.Box(0, 255, shape_of("channels first", 4), np.uint8)
    last = spaces.Box(0, 255, shape_of("channels last", 2), np.uint8)
    space = spaces.Dict({"image": box, "last": last, "vector": spaces.Box(-9, 9, (3,))})
    arguments = (24, space, ACTIONS, "cpu", 2)
    framed = PrioritizedDictReplayBuffer(*arguments, frames=dict(image=4, last=2), n_steps=n_steps)
    plain = PrioritizedDictReplayBuffer(*arguments, n_steps=n_steps)
    streams = {
        key: Stream(form, k, np.uint8, 2, k) for key, form, k in (("image", "channels first", 4), ("last", "channels last", 2))
    }
    rng = np.random.default_rng(0)
    for _ in range(40):
        obs, next_obs, dones, infos = dict_step(streams, rng, 2)
        for buffer in (framed, plain):
            buffer.add(obs, next_obs, np.zeros((2, 1)), np.zeros(2), dones, infos)
        same_batches(framed, plain)
    for key in space.spaces:
        same_bytes(framed.observations[key][:], plain.observations[key])


class GoalImages(gym.Env):
    """Stacks of random images, and goals."""

    def __init__(self) -> None:
        goal = spaces.Box(-9, 9, (2,), np.float32)
        box = spaces.Box(0, 255, (4, 36, 36), np.uint8)
        self.observation_space = spaces.Dict({"observation": box, "achieved_goal": goal, "desired_goal": goal})
        self.action_space = spaces.Discrete(2)

    def compute_reward(self, achieved_goal: Any, desired_goal: Any, info: Any) -> np.ndarray:
        return -np.abs(achieved_goal - desired_goal).sum(axis=-1).astype(np.float32)

    def _observation(self) -> dict[str, np.ndarray]:
        goals = {key: self.np_random.normal(size=2).astype(np.float32) for key in ("achieved_goal", "desired_goal")}
        return {"observation": np.concatenate(self.frames), **goals}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.frames = [np.zeros((1, 36, 36), np.uint8)] * 3 + [self.np_random.integers(1, 255, (1, 36, 36), np.uint8)]
        self.t = 0
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.frames = [*self.frames[1:], self.np_random.integers(1, 255, (1, 36, 36), np.uint8)]
        self.t += 1
        return self._observation(), -1.0, False, self.t == 7, {}


@pytest.mark.parametrize("scheme", ["proportional", "rank"])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_hindsight(n_steps, scheme):
    """A whole run: the same parameters to the bit."""
    found = []
    for frames in (None, dict(observation=4)):
        model = PERDQN(
            "MultiInputPolicy",
            make_vec_env(GoalImages, n_envs=2, seed=0),
            buffer_size=60,
            learning_starts=20,
            batch_size=8,
            n_steps=n_steps,
            replay_buffer_class=PrioritizedHerReplayBuffer,
            replay_buffer_kwargs=dict(frames=frames, scheme=scheme),
            policy_kwargs=dict(net_arch=[8]),
            seed=0,
        ).learn(150)
        found.append(model)
    for key, value in found[0].policy.state_dict().items():
        assert th.equal(value, found[1].policy.state_dict()[key]), key
    same_bytes(found[1].replay_buffer.observations["observation"][:], found[0].replay_buffer.observations["observation"])
    assert found[1].replay_buffer.frames_per_transition < 1.4


@pytest.mark.parametrize("n_added", [0, 5, 12, 30])
@pytest.mark.parametrize("dict_obs", [False, True])
def test_from_and_to_plain_buffers(dict_obs, n_added):
    """A plain buffer of SB3, a plain one of ours, and a framed one become each other; what is held stays what it is."""
    box = spaces.Box(0, 255, shape_of("channels first", 4), np.uint8)
    space = spaces.Dict({"image": box, "vector": spaces.Box(-9, 9, (3,))}) if dict_obs else box
    cls, stock_cls = (PrioritizedDictReplayBuffer, DictReplayBuffer) if dict_obs else (PrioritizedReplayBuffer, ReplayBuffer)
    frames: Any = dict(image=4) if dict_obs else 4
    arguments = (24, space, ACTIONS, "cpu", 2)
    stock, plain = stock_cls(*arguments), cls(*arguments)
    streams = {"image": Stream("channels first", 4, np.uint8, 2, 0)}
    rng = np.random.default_rng(0)

    def step(*buffers: Any) -> None:
        obs, next_obs, dones, infos = dict_step(streams, rng, 2)
        parts = (obs, next_obs) if dict_obs else (obs["image"], next_obs["image"])
        for buffer in buffers:
            buffer.add(*parts, np.zeros((2, 1)), np.zeros(2), dones, infos)

    for _ in range(n_added):
        step(stock, plain)
    framed = cls.from_replay_buffer(stock, frames=frames)
    again = cls.from_replay_buffer(pickle.loads(pickle.dumps(framed)), frames=None)
    framed_again = cls.from_replay_buffer(copy.deepcopy(again), frames=frames, alpha=0.6)
    for _ in range(5):
        step(plain, framed, again, framed_again)
    for buffer in (framed, again, framed_again):
        for name in ("observations", "next_observations"):
            actual, expected = getattr(buffer, name), getattr(plain, name)
            for key in space.spaces if dict_obs else [None]:
                same_bytes(*((each if key is None else each[key])[:] for each in (actual, expected)))
        same_batches(copy.deepcopy(buffer), copy.deepcopy(plain), 10, same_ids=n_added <= 12)  # laps of SB3's are not counted
    assert type(again.observations["image"] if dict_obs else again.observations) is np.ndarray
    assert (framed.frames, again.frames, framed_again.frames) == (frames, None, frames)


# ---- streams of real environments


def record(env: VecEnv, n_steps: int, **kwargs: Any) -> tuple[Any, Any]:
    """A framed buffer and its twin, filled as an off-policy algorithm does it."""
    arguments = (n_steps // 2 * env.num_envs, env.observation_space, env.action_space, "cpu", env.num_envs)
    framed, plain = PrioritizedReplayBuffer(*arguments, **kwargs), PrioritizedReplayBuffer(*arguments)
    env.seed(0)
    obs = env.reset()
    normalized = isinstance(env, VecNormalize)
    raw = env.get_original_obs() if normalized else obs
    for _ in range(n_steps):
        actions = np.array([env.action_space.sample() for _ in range(env.num_envs)])
        new_obs, rewards, dones, infos = env.step(actions)
        new_raw = env.get_original_obs() if normalized else new_obs
        next_obs = new_raw.copy()
        for i in np.flatnonzero(dones):
            terminal = infos[i]["terminal_observation"]
            next_obs[i] = env.unnormalize_obs(terminal) if normalized else terminal
        for buffer in (framed, plain):
            buffer.add(raw, next_obs, actions, rewards, dones, infos)
        raw = new_raw
    return framed, plain


class Frames(gym.Env):
    """Images or vectors that move, in episodes of different lengths; some are cut off."""

    def __init__(self, shape: tuple[int, ...] = (10, 10, 1), dtype: Any = np.uint8):
        self.observation_space = spaces.Box(0, 255, shape, dtype)
        self.action_space = spaces.Discrete(3)

    def _observation(self) -> np.ndarray:
        return self.np_random.integers(0, 255, self.observation_space.shape).astype(self.observation_space.dtype)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t, self.length = 0, self.np_random.integers(2, 30)
        return self._observation(), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        ends = self.t >= self.length
        return self._observation(), 1.0, bool(ends and self.length % 2), bool(ends and not self.length % 2), {}


STREAMS = {
    "stack": lambda n: VecFrameStack(make_vec_env(Frames, n), 4),
    "transposed before": lambda n: VecFrameStack(
        VecTransposeImage(make_vec_env(lambda: Frames((36, 40, 3)), n)), 4, channels_order="first"
    ),
    "transposed after": lambda n: VecTransposeImage(VecFrameStack(make_vec_env(lambda: Frames((36, 40, 3)), n), 4)),
    "channels last": lambda n: VecFrameStack(make_vec_env(lambda: Frames((36, 40, 3)), n), 4),
    "gymnasium": lambda n: make_vec_env(lambda: gym.wrappers.FrameStackObservation(Frames((10, 12)), 4), n),
    "vectors": lambda n: VecFrameStack(make_vec_env(lambda: Frames((5,), np.float32), n), 4),
    "one frame": lambda n: VecTransposeImage(make_vec_env(Frames, n)),
    "MinAtar": lambda n: VecFrameStack(make_vec_env(minatar, n), 4),
}


def minatar() -> gym.Env:
    """Bools of 10 x 10 x channels, without a time limit of their own."""
    pytest.importorskip("minatar")
    from minatar.gym import register_envs

    if "MinAtar/Breakout-v1" not in gym.registry:
        register_envs()
    return gym.make("MinAtar/Breakout-v1", max_episode_steps=60)


@pytest.mark.parametrize("n_envs", [1, 4])
@pytest.mark.parametrize("name", STREAMS)
def test_streams_of_wrappers(name, n_envs):
    framed, plain = record(STREAMS[name](n_envs), 300, frames=1 if name == "one frame" else 4)
    same_bytes(framed.observations[:], plain.observations)
    same_bytes(framed.next_observations[:], plain.next_observations)
    assert framed.frames_per_transition < 1.2


def test_normalized_stacks():
    """Rounding makes a terminal observation another one than was seen: stored in full where it differs, and exact."""
    env = VecNormalize(VecFrameStack(make_vec_env(lambda: Frames((5,), np.float32), 2), 4))
    framed, plain = record(env, 300, frames=4)
    same_bytes(framed.observations[:], plain.observations)
    same_bytes(framed.next_observations[:], plain.next_observations)


@pytest.mark.parametrize("n_envs", [1, 4])
def test_atari(n_envs):
    """With SB3's wrappers: life loss, no-ops, frame skip."""
    pytest.importorskip("ale_py")
    from stable_baselines3.common.env_util import make_atari_env

    env = VecTransposeImage(VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=n_envs, seed=0), 4))
    framed, plain = record(env, 400, frames=4)
    same_bytes(framed.observations[:], plain.observations)
    same_bytes(framed.next_observations[:], plain.next_observations)
    assert framed.frames_per_transition < 1.1


# ---- in an algorithm


@pytest.mark.parametrize("frames", [4, "auto"])
@pytest.mark.parametrize("scheme", ["proportional", "uniform"])
def test_a_run_is_that_of_the_plain_twin(scheme, frames, tmp_path):
    """Two calls of learn, set_env, save and load: parameters equal to the bit."""

    def make() -> VecEnv:
        env = VecFrameStack(make_vec_env(lambda: Frames((36, 36, 1)), 2, seed=0), 4)
        return env

    found = []
    for setting in (frames, None):
        kwargs = dict(scheme=scheme) if setting is None else dict(scheme=scheme, frames=setting)
        model = PERDQN(
            "CnnPolicy", make(), buffer_size=60, learning_starts=20, batch_size=8, replay_buffer_kwargs=kwargs, seed=0
        )
        model.learn(60)
        model.learn(40)
        model.set_env(make())
        model.learn(40, reset_num_timesteps=False)
        model.save(tmp_path / "model")
        model.save_replay_buffer(tmp_path / "buffer")
        loaded = PERDQN.load(tmp_path / "model", env=make())
        if setting is not None:
            assert kwargs["frames"] == setting  # the caller's dictionary
            assert loaded.replay_buffer_kwargs["frames"] == loaded.replay_buffer.frames == 4
        loaded.load_replay_buffer(tmp_path / "buffer")
        np.random.seed(0)
        th.manual_seed(0)
        loaded.learn(20, reset_num_timesteps=False)
        found.append(loaded)
    for key, value in found[1].policy.state_dict().items():
        assert th.equal(value, found[0].policy.state_dict()[key]), key
    same_bytes(found[0].replay_buffer.observations[:], found[1].replay_buffer.observations)


@pytest.mark.parametrize("n_envs", [1, 2])
def test_an_atari_run_is_that_of_the_plain_twin(n_envs):
    """PERDQN with CnnPolicy on a game, with SB3's wrappers: parameters and stored bytes."""
    pytest.importorskip("ale_py")
    from stable_baselines3.common.env_util import make_atari_env

    found = []
    for kwargs in (dict(frames="auto"), {}):
        env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=n_envs, seed=0), 4)
        small: dict[str, Any] = dict(
            buffer_size=80, learning_starts=40, batch_size=8, policy_kwargs=dict(net_arch=[8]), seed=0
        )
        found.append(PERDQN("CnnPolicy", env, replay_buffer_kwargs=kwargs, **small).learn(150))
    for key, value in found[1].policy.state_dict().items():
        assert th.equal(value, found[0].policy.state_dict()[key]), key
    same_bytes(found[0].replay_buffer.next_observations[:], found[1].replay_buffer.next_observations)


def test_auto_without_a_stack():
    with pytest.raises(ValueError, match=r"frames='auto' found no VecFrameStack.*frames=4"):
        PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(frames="auto"))


def test_auto_with_dictionaries():
    """All keys that are stacked."""

    class Two(Frames):
        def __init__(self) -> None:
            super().__init__((36, 36, 1))
            self.observation_space = spaces.Dict({"image": self.observation_space, "vector": spaces.Box(-1, 1, (3,))})

        def _observation(self) -> Any:
            return {"image": self.np_random.integers(0, 255, (36, 36, 1)).astype(np.uint8), "vector": np.zeros(3, np.float32)}

    env = VecFrameStack(make_vec_env(Two, 2), 3)
    model = PERDQN(
        "MultiInputPolicy", env, buffer_size=40, learning_starts=10, batch_size=4, replay_buffer_kwargs=dict(frames="auto")
    )
    model.learn(40)
    assert model.replay_buffer.frames == dict(image=3, vector=3)
    assert model.replay_buffer.frames_per_transition < 1.5


def test_continuous_actions():
    env = VecFrameStack(make_vec_env("Pendulum-v1", 2), 3)
    model = PERSAC("MlpPolicy", env, learning_starts=20, batch_size=8, replay_buffer_kwargs=dict(frames="auto", n_steps=3))
    model.learn(60)
    assert model.replay_buffer.frames == 3


def test_a_store_of_its_own():
    """Of one row and one frame of one byte: nothing is assumed of sizes."""
    store = FrameStore(1, 1, (1,), np.uint8, 1)
    for value in (0, 5, 5, 0, 255):
        store.begin(np.array([[value]]))
        store.finish(0, np.array([[value ^ 1]]))
        assert store.gather(np.array([0]), False).tolist() == [[value]]
        assert store.gather(np.array([0]), True).tolist() == [[value ^ 1]]
    with pytest.raises(IndexError, match="1"):
        store.gather(np.array([1]), False)


# ---- deliberate defects


DEFECTS = {
    "equal numbers, not bytes": ("part_a[i] ^ part_b[i]", "np.uint64(FLOATS(part_a[i]) != FLOATS(part_b[i]))"),
    "observations are not compared": ("_are_equal(observations[e].reshape(-1), last_bytes[e].reshape(-1))", "True"),
    "next observations are not compared": ("_are_equal(next_observations[e, j], observations[e, j + 1])", "True"),
    "zeros are not compared": ("if _is_zero(frame):", "if frame[0] == 0:"),
    "repeats are not compared": ("if j > 0 and _are_equal(frames[j], frames[j - 1]):", "if j > 0:"),
}


def with_defect(monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
    """The kernels of the module again, from a source with a defect in it."""
    from sb3_per.buffers import frames

    source = inspect.getsource(frames)
    source = source[source.index("@kernel") :]
    assert old in source
    namespace = dict(vars(frames))
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
    for name in ("_are_equal", "_is_zero", "_store", "_store_all", "_encode", "_decode"):
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


@pytest.mark.parametrize("name", DEFECTS)
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
        if self._n_rows_written % 7 == 0 and self.axis == 0:  # where an episode is believed to begin
            observations[:, : -(self.shape[0] // self.n_frames)] = 0
        begin(self, observations)

    monkeypatch.setattr(FrameStore, "begin", inferring)
    with pytest.raises(AssertionError):
        laps_of_a_plain_twin(np.uint8)
