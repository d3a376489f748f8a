"""Windows of sequences, checked against a reference in plain Python that remembers every step."""

import copy
import itertools
import pickle
from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3 import HerReplayBuffer

from sb3_per import (
    PERDQN,
    PrioritizedDictReplayBuffer,
    PrioritizedDictSequenceReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from tests.helpers.buffers import OBSERVATION_SPACES, batch_of, make_buffer, normalizer, python_work
from tests.helpers.sequence_reference import SPACES, Reference, make_sequences, played, states_of

SETTINGS: list[dict[str, Any]] = [
    dict(sequence_length=4, burn_in=3, n_steps=3, gamma=0.9),
    dict(sequence_length=5, burn_in=0, n_steps=2),
    dict(sequence_length=6, burn_in=2, sequence_period=2, n_steps=5),
    dict(sequence_length=3, burn_in=7, sequence_period=1),
    dict(sequence_length=1, burn_in=4),
    dict(sequence_length=5, burn_in=2, scheme="rank", store_state=False),
]


@pytest.mark.parametrize("n_envs, kwargs", [(1 + 2 * (i % 2), kwargs) for i, kwargs in enumerate(SETTINGS)], ids=str)
def test_every_window_equals_the_reference(kwargs, n_envs):
    """The steps contain laps, terminations, truncations, restarts without an end, and draws in between."""
    buffer = make_sequences(29, n_envs, **kwargs)
    reference = Reference(buffer, seed=n_envs, p_end=0.1, gamma=kwargs.get("gamma", 0.99))
    for round_ in range(33):
        reference.play(int(reference.rng.integers(1, 5)), p_told=0.05)
        if round_ % 11 == 10:
            reference.end_episodes()
        if round_ % 4 == 0:
            reference.check(buffer)
            if buffer.masses.any():
                batch = buffer.sample(5)
                assert buffer.update_priorities(batch.indices, np.ones(batch.mask.shape)) == 5
    assert buffer.numbering.next_step > 2 * buffer.buffer_size


@pytest.mark.parametrize("length, period", [(4, None), (3, 2)])
def test_every_step_is_learned_as_often_as_windows_contain_it(length, period):
    """A step is learned once if the period equals the length, otherwise once per window that contains it."""
    buffer = make_sequences(150, 2, sequence_length=length, sequence_period=period, n_steps=2)
    reference = Reference(buffer)
    reference.play(100, p_told=0.05)
    reference.end_episodes()
    counts = Counter(reference.check(buffer))
    assert sorted(counts) == sorted(step.number for steps in reference.steps for step in steps)
    if period in (None, length):
        assert set(counts.values()) == {1}
    for step in (step for steps in reference.steps for step in steps):
        anchors = range(0, step.t + 1, period or length)
        assert counts[step.number] == sum(0 <= step.t - anchor < length for anchor in anchors)


def test_uniform_draws_are_uniform_over_windows():
    """Short windows are drawn as often as long ones."""
    buffer = make_sequences(100, 2, scheme="uniform", sequence_length=4)
    reference = Reference(buffer)
    reference.play(90)
    reference.end_episodes()
    np.random.seed(0)
    drawn: Counter[float] = Counter()
    for _ in range(100):
        batch = buffer.sample(64)
        drawn.update((batch.actions[..., 0][batch.mask] * 1e4).round().tolist())
    counts = np.array(list(drawn.values()))
    assert len(counts) == 180
    n_windows = np.count_nonzero(buffer.masses)
    assert abs(counts - 100 * 64 / n_windows).max() < 5 * np.sqrt(100 * 64 / n_windows)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_windows_equal_the_reference_after_any_operations(data):
    """Mix settings, sizes, steps without states, resets and copies; each state belongs to the start of its prefix."""
    length = data.draw(st.integers(1, 5))
    kwargs = dict(
        sequence_length=length,
        sequence_period=data.draw(st.integers(1, length)),
        burn_in=data.draw(st.integers(0, 7)),
        n_steps=data.draw(st.integers(1, 3)),
        scheme=data.draw(st.sampled_from(["proportional", "rank", "uniform"])),
    )
    buffer = make_sequences(data.draw(st.integers(1, 25)), data.draw(st.integers(1, 3)), **kwargs)
    reference = Reference(buffer, seed=data.draw(st.integers(0, 100)), p_end=data.draw(st.sampled_from([0.0, 0.05, 0.3])))
    operations = ["play", "play", "play", "lap", "plain", "end", "reset", "copy", "sample", "check"]
    for operation in data.draw(st.lists(st.sampled_from(operations), max_size=15)):
        if operation == "play":
            reference.play(data.draw(st.integers(1, 9)), p_told=0.1)
        elif operation == "lap":
            reference.play(buffer.buffer_size + data.draw(st.integers(0, 3)))
        elif operation == "plain":
            reference.play(data.draw(st.integers(1, 9)), plain=True)
        elif operation == "end":
            reference.end_episodes()
        elif operation == "reset":
            reference.reset()
        elif operation == "copy":
            buffer = pickle.loads(pickle.dumps(buffer)) if data.draw(st.booleans()) else copy.deepcopy(buffer)
            reference.buffers = (buffer,)
        elif operation == "sample" and buffer.masses.any():
            batch = buffer.sample(3)
            buffer.update_priorities(batch.indices, np.random.normal(size=batch.mask.shape))
        else:
            reference.check(buffer)
    reference.check(buffer)


@pytest.mark.parametrize("scheme, n_steps", [("proportional", 3), ("rank", 1)])
def test_windows_of_one_step_equal_transitions(scheme, n_steps):
    """
    Draws, weights and priorities equal those of `PrioritizedReplayBuffer`. Other code adds up the rewards, so they may differ
    by rounding.
    """
    kwargs: dict[str, Any] = dict(n_steps=n_steps, scheme=scheme, gamma=0.97)
    windows = make_sequences(30, 2, sequence_length=1, burn_in=0, **kwargs)
    plain = PrioritizedReplayBuffer(60, *SPACES, device="cpu", n_envs=2, **kwargs)
    rng, env = np.random.default_rng(0), normalizer(*SPACES)
    for round_ in range(20):
        for _ in range(int(rng.integers(1, 9))):
            obs, next_obs, done = rng.random((2, 2)), rng.random((2, 2)), rng.random(2) < 0.2
            step = (
                obs,
                next_obs,
                rng.random((2, 1)),
                rng.normal(size=2),
                done,
                [{"TimeLimit.truncated": rng.random() < 0.5}] * 2,
            )
            windows.add(*step, states=states_of(np.ones(2)))
            plain.add(*step)
        if n_steps > 1:  # only a complete window can be drawn, but a transition can be drawn at once
            windows.end_episodes()
            plain.end_episodes()
        np.testing.assert_array_equal(windows.priorities, plain.masses)
        batches = []
        for buffer in (windows, plain):
            np.random.seed(round_)
            batches.append(buffer.sample(16, env=env if round_ % 2 else None))
        actual, expected = batches
        np.testing.assert_array_equal(actual.indices, expected.indices)
        assert th.equal(actual.weights, expected.weights)
        assert th.equal(actual.observations[0], expected.observations)
        assert th.equal(actual.observations[actual.next_steps[0], th.arange(16)], expected.next_observations)
        assert th.equal(actual.actions[0], expected.actions)
        for name in ("rewards", "dones") + ("discounts",) * (n_steps > 1):
            th.testing.assert_close(getattr(actual, name)[0], getattr(expected, name)[:, 0], rtol=1e-6, atol=1e-6, msg=name)
        td_errors = rng.normal(size=(16, 2)).astype(np.float32)
        written = (
            windows.update_priorities(actual.indices, td_errors[None]),
            plain.update_priorities(expected.indices, td_errors),
        )
        assert written == (16, 16)
        assert windows.max_priority == plain.max_priority


def test_an_episode_start_truncates_the_episode_before():
    """A done always starts a new episode, whatever `episode_starts` says."""
    buffer = make_sequences(10, 3, sequence_length=2)
    zeros = np.zeros((3, 2))
    for done, starts in (([0, 1, 0], None), ([0, 0, 0], None), ([0, 0, 1], [0, 1, 1]), ([0, 0, 0], [0, 0, 0])):
        told = None if starts is None else np.array(starts)
        buffer.add(zeros, zeros, np.zeros((3, 1)), np.zeros(3), np.array(done), [{}] * 3, episode_starts=told)
    np.testing.assert_array_equal(buffer.windows.steps_in_episode[:4], [[0, 0, 0], [1, 0, 1], [2, 0, 0], [3, 1, 0]])
    np.testing.assert_array_equal(buffer.dones[:4], [[0, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(buffer.timeouts[:4], [[0, 0, 0], [0, 1, 1], [0, 0, 0], [0, 0, 0]])


def test_a_failed_add_changes_nothing_that_can_be_drawn():
    buffer = make_sequences(7, 2, sequence_length=1, burn_in=0)
    reference = Reference(buffer)
    reference.play(9)
    zeros, states = np.zeros((2, 2)), states_of(np.ones(2))
    good = (zeros, zeros, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}] * 2)
    bad: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((np.zeros((2, 5)), *good[1:]), {}),
        ((*good[:2], np.zeros((2, 3)), *good[3:]), dict(episode_starts=[True, True])),
        (good, dict(episode_starts=[True])),
        (good, dict(states=states[:1])),
        (good, dict(states=[states[0], states[1][:, :1]])),
        (good, dict(td_errors=np.ones(2))),
    ]
    for arguments, keywords in bad:
        with pytest.raises(ValueError):
            buffer.add(*arguments, **{"states": states, **keywords})
        assert buffer.numbering.next_step == 9
        assert reference.check(buffer)
    reference.play(5)
    reference.check(buffer)


def test_states_may_be_arrays_or_tensors():
    buffer = make_sequences(30, 2, burn_in=0, sequence_length=2)
    zeros = np.zeros((2, 2))
    for number in range(1, 9):
        states: Any = states_of(np.full(2, float(number)))
        if number < 5:
            states = tuple(th.tensor(state, requires_grad=True) for state in states)
        buffer.add(zeros, zeros, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}] * 2, states=states)
    batch = buffer.read_drawn(np.array([0, 5, 8]))
    for state, expected in zip(batch.states, states_of(np.array([0.0, 3.0, 5.0])), strict=True):
        assert state.dtype is th.float32 and state.is_contiguous()
        np.testing.assert_array_equal(state, expected)


def test_states_are_stored_once_per_period():
    """A million rows with an LSTM of 256 units and a period of 40 take 51 MB of states instead of 2 GB."""
    buffer = make_sequences(10**6, 1, sequence_length=40, state_shapes=((1, 256), (1, 256)))
    assert sum(array.nbytes for array in buffer.windows.states) == 51_200_000
    assert not any(array.size for array in make_sequences(100, store_state=False).windows.states)


@pytest.mark.parametrize("obs_space, normalize", [("image", False), ("dict", True)])
def test_windows_contain_the_observations_of_single_transitions(obs_space, normalize):
    """Time is the first axis, padding stays 0 after normalization, and values equal those of single transitions."""
    space, action_space = OBSERVATION_SPACES[obs_space], spaces.Discrete(3)
    is_dict = obs_space == "dict"
    cls, plain_cls = (
        (PrioritizedDictSequenceReplayBuffer, PrioritizedDictReplayBuffer)
        if is_dict
        else (PrioritizedSequenceReplayBuffer, PrioritizedReplayBuffer)
    )
    kwargs: dict[str, Any] = dict(device="cpu", n_envs=2)
    buffer = cls(80, space, action_space, sequence_length=4, burn_in=3, n_steps=2, **kwargs)
    plain = plain_cls(80, space, action_space, **kwargs)
    rng = np.random.default_rng(0)
    obs = batch_of(space, 2)
    for _ in range(60):
        next_obs, done = batch_of(space, 2), rng.random(2) < 0.2
        step = (obs, next_obs, batch_of(action_space, 2), rng.normal(size=2), done, [{}, {}])
        for each in (buffer, plain):
            each.add(*copy.deepcopy(step))
        obs = next_obs
    env = None
    if normalize:
        norm = {"vec": space["vec"]} if is_dict else None
        env = normalizer(gym.spaces.Dict(norm) if norm else space, action_space)
    batch = buffer.sample(12, env=env)
    for b, id_ in enumerate(batch.indices):
        n_before, n_learned = int(batch.prefix_lengths[b]), int(batch.mask[:, b].sum())
        slots = (id_ + np.arange(-n_before, n_learned) * 2) % 80
        expected = plain.read_drawn(slots, env)
        for key in space.spaces if is_dict else [None]:
            get = (lambda obs, key=key: obs[key]) if is_dict else (lambda obs: obs)
            assert th.equal(get(batch.prefix)[:n_before, b], get(expected.observations)[:n_before])
            assert th.equal(get(batch.observations)[:n_learned, b], get(expected.observations)[n_before:])
            assert th.equal(get(batch.observations)[n_learned, b], get(expected.next_observations)[-1])
            assert get(batch.observations).dtype == get(expected.observations).dtype
            n_observed = int(batch.next_steps[:, b].max()) + 1
            assert not get(batch.observations)[n_observed:, b].any() and not get(batch.prefix)[n_before:, b].any()
        assert th.equal(batch.actions[:n_learned, b], expected.actions[n_before:])
        assert not batch.actions[n_learned:, b].any()


def test_frames_give_the_same_windows():
    """A buffer with `frames` returns the same observations as one with plain arrays."""
    space = spaces.Dict({"image": spaces.Box(0, 255, (3, 4, 4), np.uint8), "vec": SPACES[0]})
    kwargs: dict[str, Any] = dict(device="cpu", n_envs=2, sequence_length=4, burn_in=3, n_steps=2)
    plain = PrioritizedDictSequenceReplayBuffer(60, space, SPACES[1], **kwargs)
    framed = PrioritizedDictSequenceReplayBuffer(60, space, SPACES[1], frames=dict(image=3), **kwargs)
    rng = np.random.default_rng(0)

    def observation(stack: np.ndarray) -> Any:
        return {"image": stack.copy(), "vec": stack[:, 0, 0, :2] / 255}

    stack = np.zeros((2, 3, 4, 4), np.uint8)
    for _ in range(100):
        next_stack = np.concatenate((stack[:, 1:], rng.integers(0, 255, (2, 1, 4, 4), np.uint8)), axis=1)
        done = rng.random(2) < 0.1
        for buffer in (plain, framed):
            buffer.add(observation(stack), observation(next_stack), np.zeros((2, 1)), np.zeros(2), done, [{}, {}])
        next_stack[done] = 0
        stack = next_stack
    batches = []
    for buffer in (plain, framed):
        np.random.seed(0)
        batches.append(buffer.sample(25))
    expected, actual = batches
    for name, key in itertools.product(("observations", "prefix"), ("image", "vec")):
        assert th.equal(getattr(actual, name)[key], getattr(expected, name)[key])


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(stratified=False),
        dict(scheme="uniform", stratified=False),
        dict(scheme="rank", unique=True),
    ],
)
def test_draw_settings_apply_to_windows(kwargs):
    buffer = make_sequences(60, 2, **kwargs)
    reference = Reference(buffer)
    for round_ in range(10):
        reference.play(8)
        n = np.count_nonzero(buffer.masses) if round_ else 1
        batch = buffer.sample(max(min(n, 4), 1))
        assert set(batch.indices) <= set(buffer.transition_ids[buffer.masses > 0])
        if kwargs.get("unique"):
            assert len(set(batch.indices)) == len(batch.indices)
        masses = buffer.masses.ravel()[batch.indices % buffer.masses.size]
        weights = masses**-buffer.beta
        np.testing.assert_allclose(batch.weights[:, 0], weights / weights.max(), rtol=1e-5)
        buffer.update_priorities(batch.indices, np.random.exponential(size=batch.mask.shape))
        reference.check(buffer)


def test_reading_single_transitions_is_refused():
    buffer = played()
    with pytest.raises(NotImplementedError, match="lack their past"):
        buffer.sample_observations(4)
    with pytest.raises(NotImplementedError, match="single rows"):
        buffer._get_samples(np.arange(3))


def test_sample_and_update_run_no_python_loop_over_the_batch():
    buffer = make_sequences(100, 2, n_steps=3)
    Reference(buffer).play(120, p_told=0.05)
    work = []
    for batch_size in (2, 20, 2, 200):
        td_errors = th.randn(4, batch_size, 2)

        def cycle(batch_size=batch_size, td_errors=td_errors) -> None:
            batch = buffer.sample(batch_size)
            buffer.update_priorities(batch.indices, td_errors, batch.mask)

        cycle()
        work.append(python_work(cycle))
    assert work[1] == work[2] == work[3]


def test_rows_without_states_cannot_be_appended():
    """Nothing has changed then."""
    buffer = make_sequences(30, 1)
    reference = Reference(buffer)
    reference.play(9)
    zeros = np.zeros((3, 2), np.float32)
    with pytest.raises(NotImplementedError, match=r"append_rows\(\) of PrioritizedSequenceReplayBuffer is not supported"):
        buffer.append_rows(zeros, zeros, zeros[:, :1], zeros[:, 0], zeros[:, 0], zeros[:, 0])
    reference.play(5)
    assert reference.check(buffer)


def test_bad_settings_are_refused_before_allocation():
    for kwargs, error, message in [
        (dict(sequence_length=0), ValueError, "sequence_length .* not 0"),
        (dict(burn_in=-1), ValueError, "burn_in .* not -1"),
        (dict(sequence_period=0), ValueError, "sequence_period .* not 0"),
        (dict(sequence_period=5), ValueError, "at most sequence_length=4, not 5: .* never be learned"),
        (dict(eta=1.1), ValueError, r"eta .* \[0, 1\], not 1.1"),
        (dict(state_shapes=((2,),)), ValueError, r"state_shapes .* not \(\(2,\),\)"),
        (dict(alpha=-1.0), ValueError, "-1"),
        (dict(scheme="lap"), NotImplementedError, "LAP.* with sequences is not supported: "),
        (dict(optimize_memory_usage=True, handle_timeout_termination=False), NotImplementedError, "optimize_memory_usage"),
        (dict(recency=0.99), NotImplementedError, "recency=0.99"),
        (dict(initial_priority="td_error"), NotImplementedError, "initial_priority"),
        (dict(actor_batch="uniform"), NotImplementedError, "actor_batch"),
    ]:
        with pytest.raises(error, match=message):
            make_sequences(10**15, **kwargs)


def test_a_model_that_is_not_recurrent_is_refused():
    kwargs = dict(replay_buffer_class=PrioritizedSequenceReplayBuffer, buffer_size=100)
    with pytest.raises(NotImplementedError, match=r"PERDQN with PrioritizedSequenceReplayBuffer .* is not recurrent"):
        PERDQN("MlpPolicy", "CartPole-v1", **kwargs)


def test_sequences_with_her_are_refused():
    class Hindsight(PrioritizedDictSequenceReplayBuffer, HerReplayBuffer):
        pass

    with pytest.raises(NotImplementedError, match="hindsight"):
        Hindsight(100, OBSERVATION_SPACES["dict"], SPACES[1])


def test_sampling_without_a_complete_window_raises():
    """The buffer has too few steps yet, or is too small for any window, like the buffer that RL Zoo makes to play."""
    buffer = make_sequences(1, 2)
    with pytest.raises(ValueError, match="no transition can be drawn"):
        buffer.sample(1)
    Reference(buffer).play(5)
    with pytest.raises(ValueError, match=r"buffer_size of at least 26 \(2 environments\)"):
        buffer.sample(1)
    smallest = make_sequences(13, 2)
    reference = Reference(smallest, p_end=0.0)
    for _ in range(40):
        reference.play()
        assert reference.check(smallest) or not smallest.full


def test_reset_makes_old_ids_stale():
    buffer = played()
    old = buffer.sample(20)
    buffer.reset()
    assert not buffer.masses.any()
    reference = Reference(buffer)
    reference.play(30)
    assert buffer.update_priorities(old.indices, np.ones((6, 20))) == 0
    reference.check(buffer)


def test_other_buffers_refuse_sequence_settings():
    with pytest.raises(TypeError, match=r"no setting 'burn_in', it is one of PrioritizedSequenceReplayBuffer"):
        make_buffer(10, burn_in=3)
