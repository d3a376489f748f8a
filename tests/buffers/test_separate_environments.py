"""Environments that add separately: a buffer of several environments behaves like one buffer per environment."""

import copy
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_per import (
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.buffers.conversion import copy_newest, empty_twin
from sb3_per.monitoring.monitor import DrawRecord, statistics
from tests.helpers.buffers import assert_same, assert_same_batches, assert_same_state, contents_of, make_buffer, python_work

N_ROWS, N_ENVS = 7, 3


VECTOR, IMAGE = spaces.Box(-9, 9, (2,), np.float32), spaces.Box(0, 255, (2, 3, 3), np.uint8)


ACTION = spaces.Box(-1, 1, (2,), np.float32)


pytestmark = pytest.mark.filterwarnings("ignore:10 batches were drawn")


#: Observation space and settings of each kind of buffer.
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


class StepsOfOne:
    """Makes steps of one environment; each observation is the last next observation, except after an episode ends."""

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
    """Turn nested lists of observations into read-only arrays with the same first axes."""
    first = parts[0][0]
    if isinstance(first, dict):
        return {key: stacked([[part[key] for part in row] for row in parts]) for key in first}
    array = np.array(parts)
    array.flags.writeable = False
    return array


class Twins:
    """
    A buffer whose environments are at different steps, and its reference: one buffer per environment.

    :param kind: key of `KINDS`
    :param seed: seed of all steps and random choices
    """

    def __init__(self, kind: str, seed: int = 0, **kwargs: Any):
        self.kind, self.buffer = kind, make(kind, **kwargs)
        self.alone = [make(kind, 1, **kwargs) for _ in range(N_ENVS)]
        self.rng = np.random.default_rng(seed)
        self.columns = [StepsOfOne(self.buffer.observation_space, seed * N_ENVS + env) for env in range(N_ENVS)]
        self.n_before = np.zeros(N_ENVS, np.int64)  # step numbers that the buffer skips at a reset, and the reference does not
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
        """Add one step of all environments by SB3's method."""
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
        self.buffer.end_episodes(np.array(envs))
        for env in envs:
            self.alone[env].end_episodes()

    def update(self) -> None:
        """Update ids of all ages; each environment skips its own stale ids."""
        steps = self.buffer.ring.next_steps
        if not steps.any():
            return
        envs = self.rng.choice(np.flatnonzero(steps), 8)
        back = np.minimum(self.rng.integers(1, 2 * N_ROWS, 8), steps[envs])
        errors = self.rng.normal(size=(8, 2)) * 3
        n_written = self.buffer.update_priorities((steps[envs] - back) * N_ENVS + envs, errors)
        n_alone = 0
        for alone in self.alone:
            alone.priorities  # noqa: B018  reading gives new transitions their masses before the maximum changes
        for env, alone in enumerate(self.alone):
            ids = (steps[envs] - back - self.n_before[env])[envs == env]
            is_known = ids >= 0  # negative ids were issued before a reset
            n_alone += alone.update_priorities(ids[is_known], errors[envs == env][is_known])
        assert n_written == n_alone
        self.share_maximum()

    def share_maximum(self) -> None:
        for alone in self.alone:
            alone.sampler.max_priority = max(each.max_priority for each in self.alone)

    def reset(self) -> None:
        for buffer in (self.buffer, *self.alone):
            buffer.reset()
        self.n_before = self.buffer.ring.next_steps - [alone.ring.next_steps[0] for alone in self.alone]

    def reload(self) -> None:
        """Continue with a buffer that was made from the state of this one."""
        loaded = type(self.buffer).from_replay_buffer(copy.deepcopy(self.buffer))
        if self.rng.random() < 0.5:
            self.buffer = loaded
        else:
            self.buffer.take_over(loaded)

    def copy(self) -> None:
        self.buffer = cloudpickle.loads(cloudpickle.dumps(self.buffer))

    def check(self, buffer: PrioritizedReplayBuffer | None = None) -> None:
        buffer = self.buffer if buffer is None else buffer
        sizes = [alone.size() for alone in self.alone]
        ids, masses = buffer.transition_ids, buffer.masses
        np.testing.assert_array_equal(
            buffer.ring.next_steps, [alone.ring.next_steps[0] for alone in self.alone] + self.n_before
        )
        assert buffer.size() == min(sizes) and buffer.max_priority == self.alone[0].max_priority
        for env, alone in enumerate(self.alone):
            expected = alone.transition_ids[:, 0]
            expected = np.where(expected < 0, -1, (expected + self.n_before[env]) * N_ENVS + env)
            np.testing.assert_array_equal(ids[:, env], expected)
            if self.kind != "rank":  # masses of ranks depend on the other environments
                np.testing.assert_array_equal(masses[:, env], alone.priorities[:, 0])
            else:
                np.testing.assert_array_equal(masses[:, env] > 0, alone.priorities[:, 0] > 0)
            rows = np.flatnonzero(alone.priorities[:, 0])
            batch, one = buffer.read(rows * N_ENVS + env), alone.read(rows)
            assert_same_batches(batch, one, one._fields[:6])
            np.testing.assert_array_equal(batch.indices, expected[rows])
        drawable = np.flatnonzero(masses)
        assert len(drawable) == sum(np.count_nonzero(alone.priorities) for alone in self.alone)
        if len(drawable):
            self.check_draw(buffer, ids, masses)

    def check_draw(self, buffer: PrioritizedReplayBuffer, ids: np.ndarray, masses: np.ndarray) -> None:
        beta, batch = buffer.beta, buffer.sample(6)
        slots = batch.indices % ids.size
        np.testing.assert_array_equal(ids.ravel()[slots], batch.indices)
        relative_probabilities = masses.ravel()[slots] / masses.sum() * np.count_nonzero(masses)
        assert (relative_probabilities > 0).all()
        if buffer.scheme.importance_sampling:
            np.testing.assert_allclose(
                batch.weights.numpy().ravel(), (relative_probabilities / relative_probabilities.min()) ** -beta, rtol=1e-5
            )
        assert_same(batch.observations, buffer.read(slots).observations)


ENVS = st.lists(st.integers(0, N_ENVS - 1), min_size=1, max_size=N_ENVS, unique=True)


ACTIONS = st.one_of(
    st.tuples(st.just("add_steps"), ENVS, st.integers(1, N_ROWS)),
    st.tuples(st.just("add_steps"), ENVS, st.integers(1, 3)),
    st.tuples(st.sampled_from(["add", "update", "update", "reload", "copy", "check", "check", "reset"])),
    st.tuples(st.just("cut"), ENVS),
)


def run_actions(twins: Twins, actions: list[tuple[Any, ...]]) -> None:
    """Run the actions in their order, then check the result."""
    for name, *arguments in actions:
        getattr(twins, name)(*arguments)
    twins.check()


@pytest.mark.parametrize("kind", ["td_error", "rank", "memory", "dict"])
@settings(max_examples=10, deadline=None)
@given(st.lists(ACTIONS, min_size=5, max_size=25), st.integers(0, 99))
def test_several_environments_behave_like_one_buffer_each(kind, actions, seed):
    run_actions(Twins(kind, seed), actions)


# Laps, ended episodes, repeated copies, and environments that are more than a lap apart.


UNEVEN_ACTIONS: list[tuple[Any, ...]] = [
    ("add",),
    ("add_steps", [0, 1], 3),
    ("update",),
    ("cut", [1]),
    ("reload",),
    ("add_steps", [0, 1], 2),
    ("check",),
    ("add_steps", [2], 4),
    ("update",),
    ("reload",),
    *[("add_steps", [0], 5), ("update",), ("check",)] * 4,
    ("add_steps", [1, 2], 6),
    ("cut", [0]),
    ("reload",),
    ("add_steps", [0, 1], 1),
    ("update",),
    ("reset",),
    ("add_steps", [1], 2),
    ("update",),
    ("add_steps", [0, 2], 6),
    ("reload",),
    ("check",),
    ("add",),
]


@pytest.mark.parametrize("kind", ["windows", "td_error", "rank", "memory", "frames"])
def test_environments_more_than_a_lap_apart_behave_like_one_buffer_each(kind):
    run_actions(Twins(kind, 1), UNEVEN_ACTIONS)


def filled_in_three_ways(**kwargs: Any) -> list[PrioritizedReplayBuffer]:
    """Add the same steps to three buffers: step by step, in chunks of all environments, and separately."""
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


SETTINGS: list[dict[str, Any]] = [
    dict(scheme="rank", n_steps=3),
    dict(scheme="lap", actor_batch="uniform"),
    dict(scheme="uniform", stratified=False),
    dict(initial_priority="td_error", unique=True),
    dict(recency=0.99, recency_min=3),
    dict(optimize_memory_usage=True, handle_timeout_termination=False),
    dict(obs_space="image", frames=2),
]


@pytest.mark.parametrize("kwargs", SETTINGS, ids=str)
def test_steps_added_separately_or_together_give_the_same_buffer(kwargs):
    """Steps may come in chunks of any size, of all environments or of some."""
    buffers = filled_in_three_ways(**kwargs)
    if kwargs.get("scheme") == "rank":
        buffers.pop()  # of equal priorities, the one that came last ranks first
    one, *others = buffers
    for other in others:
        assert other.ring.all_at_same_step
        assert_same_state(contents_of(other), contents_of(one))
    batches = []
    for buffer in buffers:
        np.random.seed(0)
        batches.append([(batch := buffer.sample(8)), buffer.update_priorities(batch.indices, th.ones(8, 1)), buffer.sample(8)])
        batches[-1].append(buffer.sample_observations(5))
    for batch in batches[1:]:
        assert_same(batch[3], batches[0][3])
        for i in (0, 2):
            assert_same_batches(batch[i], batches[0][i])


def uneven_buffer(**kwargs: Any) -> PrioritizedReplayBuffer:
    """Make a buffer whose environments are at different steps, one of them in its second lap."""
    twins = Twins("plain", **kwargs)
    for envs, n in (([0], 5), ([1, 2], 2), ([0], 7), ([1], 1)):
        twins.add_steps(envs, n)
    return twins.buffer


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(scheme="uniform", stratified=False),
        dict(scheme="rank", unique=True),
        dict(recency=0.999, recency_min=4),
        dict(scheme="rank", recency=0.999, recency_min=4),
    ],
    ids=str,
)
def test_draws_from_uneven_environments_follow_the_masses(kwargs):
    buffer = uneven_buffer(**kwargs)
    assert not buffer.ring.all_at_same_step
    ids = buffer.transition_ids
    ids = ids[ids >= 0]
    buffer.update_priorities(ids, np.arange(1.0, len(ids) + 1))
    masses = buffer.masses
    assert np.count_nonzero(masses) == 7 + 3 + 2
    if "recency" in kwargs:
        # The newest four are the newest step of each environment, and the second newest of the last environment.
        newest = {(12 - 1) * 3 + 0, (3 - 1) * 3 + 1, (2 - 1) * 3 + 2, (2 - 2) * 3 + 2}
        masses[~np.isin(buffer.transition_ids, list(newest))] = 0.0
    expected = masses.ravel() / masses.sum()
    np.random.seed(1)
    counts = np.zeros(masses.size)
    for _ in range(200):
        batch = buffer.sample(4, series_progress=1.0)
        if "unique" in kwargs:
            assert len(set(batch.indices.tolist())) == 4
        np.add.at(counts, batch.indices % masses.size, 1)
    assert (counts[expected == 0] == 0).all()
    if "unique" not in kwargs:
        np.testing.assert_allclose(counts / 800, expected, atol=0.06)
    else:
        assert (counts > 0).sum() == 12
    observations = buffer.sample_observations(500).numpy()
    assert len(np.unique(observations, axis=0)) == 12


def test_ages_are_counted_within_each_environment():
    """The newest step of a slow environment is as young as the newest step of a fast one."""
    buffer = uneven_buffer()
    buffer.draw_record = DrawRecord(buffer.buffer_size * N_ENVS)
    batch = buffer.sample(50)
    steps, envs = np.divmod(batch.indices, N_ENVS)
    expected = (buffer.ring.next_steps[envs] - 1 - steps) * N_ENVS + N_ENVS - 1 - envs
    np.testing.assert_array_equal(statistics(buffer)[0]["age"], expected)
    assert expected.max() < N_ROWS * N_ENVS


@pytest.mark.parametrize("kind", ["windows", "dict"])
def test_add_sample_and_update_run_no_python_loop(kind):
    """Adding 12 times and drawing 6 times as many steps takes about the same number of Python instructions and calls."""
    buffer, column = make(kind, 4, 4000), StepsOfOne(KINDS[kind][0], 0)
    buffer.beta_schedule.anneal_steps = None  # annealing takes fewer instructions after its end
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
        assert not buffer.ring.all_at_same_step
        work.append(python_work(cycle))
    # Frames sometimes allocate another piece of memory; a loop over the steps would take many times as much.
    np.testing.assert_allclose(work[1], work[0], rtol=0.1)


def first(obs: Any, n_steps: int, n_envs: int) -> Any:
    if isinstance(obs, dict):
        return {key: first(part, n_steps, n_envs) for key, part in obs.items()}
    return np.array(obs[:n_steps, :n_envs])


def arrays(n_steps: int, n_envs: int) -> dict[str, np.ndarray]:
    flags = {name: np.zeros((n_steps, n_envs)) for name in ("rewards", "dones", "timeouts")}
    return {"actions": np.zeros((n_steps, n_envs, 2)), **flags}


@pytest.mark.parametrize("kind, n_rows", [("frames", 4), ("memory", 11), ("td_error", 11)])
def test_resizing_keeps_the_newest_steps_of_each_environment(kind, n_rows):
    twins = Twins(kind, 3)
    for envs, n in (([0, 1, 2], 6), ([1, 2], 5), ([1], 2), ([0], 5), ([2], 1)):
        twins.add_steps(envs, n)
        twins.update()
    old = twins.buffer
    new = empty_twin(old, n_rows, old.settings.frames)
    copy_newest(old, new, keeps_masses=True)
    shifts = (new.ring.next_steps - old.ring.next_steps) * N_ENVS
    ids, masses = new.transition_ids, new.masses
    for id_, mass in zip(ids[masses > 0], masses[masses > 0], strict=True):
        old_id = id_ - shifts[id_ % N_ENVS]
        slot, old_slot = id_ % new.ring.capacity, old_id % old.ring.capacity
        assert old.transition_ids.ravel()[old_slot] == old_id
        assert mass == old.priorities.ravel()[old_slot]
        batches = [each.read(np.array([at])) for each, at in ((new, slot), (old, old_slot))]
        assert_same_batches(*batches, ["observations", "actions"])
    # Each environment keeps as many as fit, minus its overwritten row with optimize_memory_usage.
    held = np.minimum(np.count_nonzero(old.priorities, axis=0), n_rows)
    assert (np.count_nonzero(masses, axis=0) >= held - (kind == "memory")).all()
    assert (new.max_priority, new.beta) == (old.max_priority, old.beta)
    new.sample(5)


@pytest.mark.parametrize("frames", [None, 2])
def test_settings_can_change_while_environments_are_at_different_steps(frames):
    twins = Twins("frames", frames=None if frames else 2)
    for envs, n in (([0], 6), ([1, 2], 2), ([0], 7)):
        twins.add_steps(envs, n)
    twins.buffer = PrioritizedReplayBuffer.from_replay_buffer(twins.buffer, frames=frames)
    twins.check()
    twins.add_steps([1], 4)
    twins.add_steps([2, 0], 3)
    twins.check()
    other = PrioritizedReplayBuffer.from_replay_buffer(twins.buffer, alpha=1.0)
    assert np.count_nonzero(other.masses) == np.count_nonzero(twins.buffer.masses)


def chunk(n_steps: int = 2, n_envs: int = 1) -> dict[str, Any]:
    shape = (n_steps, n_envs)
    vectors = {name: np.zeros((*shape, 2)) for name in ("obs", "next_obs", "actions")}
    return {"envs": np.arange(n_envs), **vectors, **{name: np.zeros(shape) for name in ("rewards", "dones", "timeouts")}}


def test_bad_arguments_of_add_steps_change_nothing():
    for change, message in [
        (dict(envs=[3]), r"different integers in \[0, 3\), not \[3\]"),
        (dict(envs=[-1]), r"not \[-1\]"),
        (dict(envs=[0.0]), "different integers"),
        (dict(envs=[]), "different integers"),
        (dict(envs=[0, 1]), r"rewards must have shape \(T, 2\), not \(2, 1\)"),
        (dict(rewards=np.zeros(2)), r"rewards must have shape \(T, 1\), not \(2,\)"),
        (dict(td_errors=np.zeros((2, 1))), "initial_priority='td_error'"),
        (dict(td_errors=np.zeros((3, 1))), r"td_errors have shape \(3, 1\), and must have shape \(2, 1\)"),
        (chunk(8), "8 steps at once do not fit a buffer of 7 rows"),
        ({**chunk(2, 2), "envs": [1, 1]}, "different integers"),
    ]:
        twins = Twins("plain")
        twins.add_steps([0, 1], 3)
        before = contents_of(twins.buffer)
        with pytest.raises(ValueError, match=message):
            twins.buffer.add_steps(**{**chunk(), **change})
        assert_same_state(contents_of(twins.buffer), before)
        with pytest.raises(ValueError, match="different integers"):
            twins.buffer.end_episodes([0, 0])


def test_adding_zero_steps_changes_nothing():
    buffer = uneven_buffer()
    before = contents_of(buffer)
    buffer.add_steps(**chunk(0))
    assert_same_state(contents_of(buffer), before)


def test_td_errors_that_are_not_finite_are_refused():
    buffer = make("td_error")
    with pytest.raises(ValueError, match="must be finite, not nan"):
        buffer.add_steps(**chunk(), td_errors=np.array([[1.0], [np.nan]]))
    assert buffer.ring.next_steps.tolist() == [0, 0, 0]


def test_ids_that_an_environment_never_issued_are_refused():
    twins = Twins("plain")
    twins.add_steps([0], 5)
    twins.add_steps([1], 2)
    n_added = [5, 2, 0]
    for step, env in ((5, 0), (2, 1), (0, 2), (-1, 0)):
        next_id = f"the next one of environment {env} is {n_added[env] * 3 + env}$"
        with pytest.raises(IndexError, match=f"id {step * 3 + env} was never issued: ids are at least 0, and {next_id}"):
            twins.buffer.update_priorities(np.array([0, step * 3 + env]), np.ones(2))
    with pytest.raises(ValueError, match=r"not inf \(transition id 4\)"):
        twins.buffer.update_priorities(np.array([0, 4]), np.array([0.0, np.inf]))
    assert twins.buffer.update_priorities(np.array([12, 4]), np.ones(2)) == 2


def test_a_buffer_works_while_some_environments_have_added_nothing():
    twins = Twins("frames")
    twins.cut([0, 1, 2])
    for _ in range(3):
        twins.add_steps([1], 6)
        twins.check()
    assert twins.buffer.size() == 0 and twins.buffer.frames_per_transition >= 1.0
    twins.buffer.sample(3)


def test_a_buffer_takes_over_the_contents_of_another():
    buffer, other = uneven_buffer(), make("plain")
    other.add_steps(**chunk(2, 3))
    buffer.take_over(other)
    assert buffer.ring.next_steps.tolist() == [2, 2, 2] and buffer.size() == 2
    buffer.sample(2)


def test_her_and_sequences_refuse_separate_environments():
    goals = spaces.Dict({key: VECTOR for key in ("observation", "achieved_goal", "desired_goal")})
    her = PrioritizedHerReplayBuffer(30, goals, ACTION, device="cpu", n_envs=3, env=None)
    sequences = PrioritizedSequenceReplayBuffer(30, VECTOR, ACTION, device="cpu", n_envs=3, sequence_length=2, burn_in=0)
    for buffer, what in ((her, "hindsight"), (sequences, "sequences")):
        with pytest.raises(NotImplementedError, match=what):
            buffer.add_steps(**chunk())
        with pytest.raises(NotImplementedError, match=what):
            buffer.end_episodes([0])
    with pytest.raises(ValueError, match="different numbers of steps"):
        PrioritizedSequenceReplayBuffer.from_replay_buffer(uneven_buffer(), sequence_length=2, burn_in=0)


def test_add_steps_copies_the_arrays_of_the_caller():
    """The frame store compares a step with the step before, so it must have its own copy."""
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
