"""Windows of sequences, held against a reference in plain Python that remembers every step; states, priorities, files."""

import copy
import pickle
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from sb3_per.buffers.ring import TransitionRing
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.her.her_replay_buffer import HerReplayBuffer

from sb3_per import (
    PERDQN,
    PrioritizedDictReplayBuffer,
    PrioritizedDictSequenceReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
    SequenceReplayBufferSamples,
)
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.storage import recurrent_states, sequence_ring, sequences
from tests.test_hot_path import python_work
from tests.utils import OBSERVATION_SPACES, assert_same_state, batch_of, normalizer

SHAPES = ((1, 2), (2, 3))
SPACES = (spaces.Box(0, 1e6, (2,), np.float32), spaces.Box(-1, 1, (1,), np.float32))


def make_sequences(n_rows: int = 30, n_envs: int = 2, **kwargs: Any) -> PrioritizedSequenceReplayBuffer:
    """A buffer of ``n_rows`` rows whose observations are two numbers, and its states SHAPES."""
    kwargs = {"sequence_length": 4, "burn_in": 3, "state_shapes": SHAPES, **kwargs}
    return PrioritizedSequenceReplayBuffer(n_rows * n_envs, *SPACES, device="cpu", n_envs=n_envs, **kwargs)


class Step(NamedTuple):
    """What happened; ``number`` is its reward and what names it, observations are numbers as well."""

    number: float
    obs: float
    next_obs: float
    t: int
    state: float


class Reference:
    """
    Plays random episodes into buffers, and knows what every window must be.

    :param buffers: of the same spaces and number of environments
    :param seed: of the episodes
    :param p_end: how often an episode ends
    """

    def __init__(self, *buffers: Any, seed: int = 0, p_end: float = 0.15):
        self.buffers, self.n_envs = buffers, buffers[0].n_envs
        self.rng, self.p_end = np.random.default_rng(seed), p_end
        self.number = 0.0
        # Steps of each environment since the ring is empty; ends, and which of them are terminations, by number.
        self.steps: list[list[Step]] = [[] for _ in range(self.n_envs)]
        self.ends: dict[float, bool] = {}

    def play(self, n_steps: int = 1, p_told: float = 0.0, foreign: bool = False) -> None:
        """
        :param n_steps: how many
        :param p_told: how often an episode starts without an end of the one before
        :param foreign: by SB3's ``add``, which knows nothing of starts and states
        """
        for _ in range(n_steps):
            told = self.rng.random(self.n_envs) < p_told
            done = self.rng.random(self.n_envs) < self.p_end
            truncated = done & (self.rng.random(self.n_envs) < 0.5)
            new = []
            for e in range(self.n_envs):
                last = self.steps[e][-1] if self.steps[e] else None
                is_start = last is None or last.number in self.ends or bool(told[e])
                if last is not None and is_start:
                    self.ends.setdefault(last.number, False)
                self.number += 1
                obs = self.number + 0.25 if is_start or last is None else last.next_obs
                state = 0.0 if is_start or foreign else self.number + 0.5
                t = 0 if is_start or last is None else last.t + 1
                new.append(Step(self.number, obs, self.number + 0.75, t, state))
                if done[e]:
                    self.ends[self.number] = not truncated[e]
                self.steps[e].append(new[-1])
            obs, next_obs, reward = (
                np.array([getattr(s, name) for s in new], np.float32) for name in ("obs", "next_obs", "number")
            )
            arguments = (
                np.stack((obs, -obs), axis=1),
                np.stack((next_obs, -next_obs), axis=1),
                reward[:, None] / 1e4,
                reward,
                done,
                [{"TimeLimit.truncated": bool(t)} for t in truncated],
            )
            for buffer in self.buffers:
                if foreign:
                    ReplayBuffer.add(buffer, *copy.deepcopy(arguments))
                    continue
                states = states_of(np.array([s.state if s.t > 0 else 77.0 for s in new]))
                buffer.add(*copy.deepcopy(arguments), episode_starts=told, states=states)

    def end_episodes(self) -> None:
        for buffer in self.buffers:
            buffer.end_episodes()
        for steps in self.steps:
            if steps:
                self.ends.setdefault(steps[-1].number, False)

    def reset(self) -> None:
        for buffer in self.buffers:
            buffer.reset()
        self.steps = [[] for _ in range(self.n_envs)]

    # ---- what must be

    def window(self, e: int, i: int, n_steps: int) -> list[Step]:
        """Up to so many steps from the i-th one on, of one episode."""
        found: list[Step] = []
        for step in self.steps[e][i : i + n_steps]:
            found.append(step)
            if step.number in self.ends:
                break
        return found

    def drawable(self, buffer: PrioritizedSequenceReplayBuffer) -> set[float]:
        """Numbers of the steps whose windows can be drawn."""
        found = set()
        n_recorded = buffer.sequence_length + buffer.n_steps - 1
        period = buffer.sequence_period or buffer.sequence_length
        for e, steps in enumerate(self.steps):
            oldest = len(steps) - buffer.buffer_size + buffer.burn_in + period - 1 if buffer.full else 0
            for i in range(oldest, len(steps)):
                if steps[i].t % period == 0:
                    window = self.window(e, i, n_recorded)
                    if len(window) == n_recorded or window[-1].number in self.ends:
                        found.add(steps[i].number)
        return found

    def check(self, buffer: PrioritizedSequenceReplayBuffer, is_whole: bool = True) -> list[float]:
        """
        That exactly the right windows can be drawn, and that each is what it must be.

        :param buffer: one of those that were played into
        :param is_whole: whether it holds all that it could
        :return: numbers of all steps that are learned, from all windows
        """
        masses, can_be_drawn = buffer.priorities.ravel(), buffer._can_be_drawn(buffer.transition_ids.ravel())
        np.testing.assert_array_equal(masses > 0, can_be_drawn)
        leaves = np.flatnonzero(masses)
        assert buffer._n_drawable == len(leaves)
        expected = self.drawable(buffer)
        drawn = set(buffer.rewards.ravel()[leaves].tolist())
        assert drawn == expected if is_whole else drawn <= expected
        if not len(leaves):
            return []
        batch = buffer._gather(leaves, np.ones((len(leaves), 1), np.float32), None)
        np.testing.assert_array_equal(batch.indices, buffer.transition_ids.ravel()[leaves])
        places = {step.number: (e, i) for e, steps in enumerate(self.steps) for i, step in enumerate(steps)}
        learned = []
        for b, leaf in enumerate(leaves):
            self.check_window(buffer, batch, b, *places[float(buffer.rewards.ravel()[leaf])])
            learned += (batch.actions[:, b, 0][batch.mask[:, b]] * 1e4).round().tolist()
        return learned

    def check_window(
        self, buffer: PrioritizedSequenceReplayBuffer, batch: SequenceReplayBufferSamples, b: int, e: int, i: int
    ) -> None:
        length, n, gamma = buffer.sequence_length, buffer.n_steps, buffer.gamma
        window = self.window(e, i, length + n - 1)
        observed = [window[0].obs, *(step.next_obs for step in window)]
        assert_padded(batch.observations[:, b, 0], observed)
        assert_padded(batch.observations[:, b, 1], [-obs for obs in observed])

        n_before = min(self.steps[e][i].t, buffer.burn_in)
        before = self.steps[e][i - n_before : i]
        assert batch.prefix_lengths[b] == n_before
        assert batch.prefix.shape[0] == buffer.burn_in
        assert_padded(batch.prefix[:, b, 0], [step.obs for step in before])
        for state, known in zip(batch.states, states_of(np.array([(before or window)[0].state])), strict=True):
            assert np.array_equal(state[:, b], known[:, 0] if buffer.store_state else 0.0 * known[:, 0]), (state, known)

        learned = window[:length]
        assert batch.mask[:, b].tolist() == [True] * len(learned) + [False] * (length - len(learned))
        assert_padded(batch.actions[:, b, 0], [step.number / 1e4 for step in learned], 1e-6)
        rewards, discounts, dones, behind = [], [], [], []
        for k in range(len(learned)):
            followed = window[k : k + n]
            rewards.append(sum(gamma**j * step.number for j, step in enumerate(followed)))
            discounts.append(gamma ** len(followed))
            dones.append(float(self.ends.get(followed[-1].number, False)))
            behind.append(k + len(followed))
            assert batch.observations[behind[-1], b, 0] == followed[-1].next_obs
        assert_padded(batch.rewards[:, b], rewards, 1e-5)
        assert_padded(batch.discounts[:, b], discounts, 1e-6)
        assert_padded(batch.dones[:, b], dones)
        assert_padded(batch.next_steps[:, b], behind)


def states_of(numbers: np.ndarray) -> list[np.ndarray]:
    """States that are these numbers, and which unit it is; (n_layers, n, hidden) each."""
    found = []
    for n_layers, hidden in SHAPES:
        units = np.arange(n_layers * hidden).reshape(n_layers, 1, hidden) * 0.001
        found.append(((numbers[:, None] + units) * (numbers != 0)[:, None]).astype(np.float32))
    return found


def assert_padded(actual: th.Tensor, expected: list[float], rtol: float = 0.0) -> None:
    padded = expected + [0.0] * (len(actual) - len(expected))
    assert all(abs(a - b) <= rtol * abs(b) for a, b in zip(actual.tolist(), padded, strict=True)), (actual, expected)


# ---- every window

SETTINGS: list[dict[str, Any]] = [
    dict(sequence_length=4, burn_in=3),
    dict(sequence_length=4, burn_in=3, n_steps=3, gamma=0.9),
    dict(sequence_length=5, burn_in=0, n_steps=2),
    dict(sequence_length=6, burn_in=2, sequence_period=2, n_steps=5),
    dict(sequence_length=3, burn_in=7, sequence_period=1),
    dict(sequence_length=1, burn_in=0, n_steps=3),
    dict(sequence_length=1, burn_in=4),
    dict(sequence_length=5, burn_in=2, scheme="rank", store_state=False),
]


@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("kwargs", SETTINGS, ids=str)
def test_every_window(kwargs, n_envs):
    """Through laps, ends, truncations, restarts that nobody has announced, and whatever is looked at in between."""
    buffer = make_sequences(29, n_envs, **kwargs)
    reference = Reference(buffer, seed=n_envs, p_end=0.1)
    for round_ in range(40):
        reference.play(int(reference.rng.integers(1, 5)), p_told=0.05)
        if round_ % 11 == 10:
            reference.end_episodes()
        if round_ % 3 == 0:
            reference.check(buffer)
            if buffer.priorities.any():
                batch = buffer.sample(5)
                assert buffer.update_priorities(batch.indices, np.ones(batch.mask.shape)) == 5
    assert buffer._n_added > 2 * buffer.buffer_size


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("length, period", [(4, None), (1, 1), (5, 5), (4, 2), (5, 1), (3, 2)])
def test_every_step_is_learned(length, period, n_envs):
    """Where the period is the length, once; overlapping windows, as often as they overlap."""
    buffer = make_sequences(300, n_envs, sequence_length=length, sequence_period=period, n_steps=2)
    reference = Reference(buffer)
    reference.play(200, p_told=0.05)
    reference.end_episodes()
    counts = Counter(reference.check(buffer))
    assert sorted(counts) == sorted(step.number for steps in reference.steps for step in steps)
    if period in (None, length):
        assert set(counts.values()) == {1}
    for step in (step for steps in reference.steps for step in steps):
        anchors = range(0, step.t + 1, period or length)
        assert counts[step.number] == sum(0 <= step.t - anchor < length for anchor in anchors)


def test_uniform_draws_are_uniform_over_transitions():
    """The windows do not overlap, and each is drawn as often, however short it is."""
    buffer = make_sequences(100, 2, scheme="uniform", sequence_length=4)
    reference = Reference(buffer)
    reference.play(90)
    reference.end_episodes()
    np.random.seed(0)
    drawn: Counter[float] = Counter()
    for _ in range(200):
        batch = buffer.sample(64)
        drawn.update((batch.actions[..., 0][batch.mask] * 1e4).round().tolist())
    counts = np.array(list(drawn.values()))
    assert len(counts) == 180
    n_windows = buffer._n_drawable
    assert abs(counts - 200 * 64 / n_windows).max() < 5 * np.sqrt(200 * 64 / n_windows)


@settings(max_examples=60)
@given(data=st.data())
def test_any_operations(data):
    """Settings, sizes, adds past `add`, resets and copies: the owner of a state is always where a prefix starts."""
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
    operations = ["play", "play", "play", "lap", "foreign", "end", "reset", "copy", "sample", "check"]
    for operation in data.draw(st.lists(st.sampled_from(operations), max_size=15)):
        if operation == "play":
            reference.play(data.draw(st.integers(1, 9)), p_told=0.1)
        elif operation == "lap":
            reference.play(buffer.buffer_size + data.draw(st.integers(0, 3)))
        elif operation == "foreign" and buffer.buffer_size > 3:
            reference.play(data.draw(st.integers(1, buffer.buffer_size - 2)), foreign=True)
            buffer.transition_ids  # noqa: B018
        elif operation == "end":
            reference.end_episodes()
        elif operation == "reset":
            reference.reset()
        elif operation == "copy":
            buffer = pickle.loads(pickle.dumps(buffer)) if data.draw(st.booleans()) else copy.deepcopy(buffer)
            reference.buffers = (buffer,)
        elif operation == "sample" and buffer.priorities.any():
            batch = buffer.sample(3)
            buffer.update_priorities(batch.indices, np.random.normal(size=batch.mask.shape))
        else:
            reference.check(buffer)
    reference.check(buffer)


def test_foreign_rows_over_a_whole_lap():
    """What they go on from is not there any more: the oldest one starts anew, and no window reaches behind it."""
    buffer = make_sequences(20, 1, burn_in=3)
    reference = Reference(buffer, p_end=0.0)
    reference.play(13)
    for _ in range(2):
        reference.play(19, foreign=True)
        reference.check(buffer)


# ---- deliberate defects, each of which a check above must see


def state_after(patch: pytest.MonkeyPatch) -> None:
    add = sequence_ring.SequenceRing.add

    def late(self: Any, *args: Any, states: Any = None, **kwargs: Any) -> None:
        add(self, *args, states=[state + np.float32(1) for state in states], **kwargs)

    patch.setattr(sequence_ring.SequenceRing, "add", late)


def state_of_the_anchor(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sequence_ring, "RecurrentStates", lambda *args: recurrent_states.RecurrentStates(*args[:3], 0, *args[4:]))


def reset_in_a_window(patch: pytest.MonkeyPatch) -> None:
    lengths = sequences.window_lengths
    patch.setattr(
        sequences, "window_lengths", lambda leaves, dones, *rest: lengths(leaves, np.zeros_like(dones), dones * 0, *rest[1:])
    )


def reset_in_the_prefix(patch: pytest.MonkeyPatch) -> None:
    add = sequence_ring.SequenceRing.add

    def add_and_forget(self: Any, *args: Any, **kwargs: Any) -> None:
        add(self, *args, **kwargs)
        row = self.pos - 1
        self.episode_steps[row] = np.where(self.episode_steps[row] == 0, 20 * self._period, self.episode_steps[row])

    patch.setattr(sequence_ring.SequenceRing, "add", add_and_forget)


def n_steps_over_a_seam(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sequence_ring.SequenceRing, "_truncate", lambda self, row, envs: None)


def timeouts_as_terminations(patch: pytest.MonkeyPatch) -> None:
    read = sequences.read_columns
    patch.setattr(sequences, "read_columns", lambda *args: read(*args[:4], np.zeros_like(args[4])))


def nothing_retired(patch: pytest.MonkeyPatch) -> None:
    ring = sequence_ring.SequenceRing
    oldest = property(lambda self: max(self._n_added - self.size(), self._oldest_admitted))
    patch.setattr(ring, "_oldest_anchor", oldest)


def admitted_too_early(patch: pytest.MonkeyPatch) -> None:
    admit = sequence_ring.admit_windows
    patch.setattr(sequence_ring, "admit_windows", lambda *args: admit(*args[:-1], args[-1] - 1))


DEFECTS = [
    state_after,
    state_of_the_anchor,
    reset_in_a_window,
    reset_in_the_prefix,
    n_steps_over_a_seam,
    timeouts_as_terminations,
    nothing_retired,
    admitted_too_early,
]


@pytest.mark.parametrize("defect", [None, *DEFECTS])
def test_defects_are_seen(defect, monkeypatch):
    if defect is not None:
        defect(monkeypatch)
    buffer = make_sequences(31, 2, n_steps=3, burn_in=2)
    reference = Reference(buffer, seed=1, p_end=0.05)

    def run() -> None:
        for _ in range(25):
            reference.play(3, p_told=0.03)
            reference.check(buffer)

    if defect is None:
        run()
    else:
        with pytest.raises(AssertionError):
            run()


# ---- windows of one step are transitions


@pytest.mark.parametrize("scheme", ["proportional", "rank", "uniform"])
@pytest.mark.parametrize("n_steps", [1, 3])
def test_one_step_is_a_transition(n_steps, scheme):
    """To the bit the draws, weights, rewards, discounts and priorities of `PrioritizedReplayBuffer`."""
    kwargs: dict[str, Any] = dict(n_steps=n_steps, scheme=scheme, gamma=0.97)
    windows = make_sequences(30, 2, sequence_length=1, burn_in=0, **kwargs)
    plain = PrioritizedReplayBuffer(60, *SPACES, device="cpu", n_envs=2, **kwargs)
    rng, env = np.random.default_rng(0), normalizer(*SPACES)
    for round_ in range(25):
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
        if n_steps > 1:  # windows are held back until they are complete, transitions are not
            windows.end_episodes()
            plain.end_episodes()
        np.testing.assert_array_equal(windows.priorities, plain.priorities)
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
            assert th.equal(getattr(actual, name)[0], getattr(expected, name)[:, 0]), name
        td_errors = rng.normal(size=(16, 2)).astype(np.float32)
        written = (
            windows.update_priorities(actual.indices, td_errors[None]),
            plain.update_priorities(expected.indices, td_errors),
        )
        assert written == (16, 16)
        assert windows.max_priority == plain.max_priority


# ---- priorities


def played(**kwargs: Any) -> PrioritizedSequenceReplayBuffer:
    buffer = make_sequences(60, 2, **{"sequence_length": 6, "epsilon": 1e-3, "alpha": 0.7, **kwargs})
    Reference(buffer, p_end=0.2).play(50)
    return buffer


@pytest.mark.parametrize("reduction", ["mean", "max", "min"])
@pytest.mark.parametrize("eta", [0.0, 0.3, 0.9, 1.0])
@pytest.mark.parametrize("n_critics", [None, 1, 2])
def test_priority_of_a_window(eta, n_critics, reduction, defect=None):
    """Over the steps that there are, of signed errors; what stands behind the last one does not count, whatever it is."""
    buffer = played(eta=eta, td_error_reduction=reduction)
    rng = np.random.default_rng(0)
    batch = buffer.sample(20)
    assert 0 < batch.mask.float().mean() < 1
    td_errors = rng.normal(size=(6, 20) if n_critics is None else (6, 20, n_critics))
    expected = {}
    for b, id_ in enumerate(batch.indices.tolist()):
        steps = []
        for k in range(6):
            if batch.mask[k, b]:
                critics = np.abs(td_errors[k, b]).reshape(-1)
                steps.append({"mean": np.mean, "max": np.max, "min": np.min}[reduction](critics))
        expected[id_] = (eta * max(steps) + (1 - eta) * sum(steps) / len(steps) + 1e-3) ** 0.7
    for padding in (np.nan, 1e9, 0.0):
        td_errors[~batch.mask.numpy()] = padding
        for mask in (None, batch.mask, batch.mask.numpy().astype(np.float32)):
            for errors in (td_errors, th.tensor(td_errors, requires_grad=True)):
                changed = copy.deepcopy(buffer)
                assert changed.update_priorities(batch.indices, errors, mask) == 20
                masses = changed.priorities.ravel()[batch.indices % changed.priorities.size]
                np.testing.assert_allclose(masses, [expected[id_] for id_ in batch.indices.tolist()], rtol=1e-12)
                assert changed.max_priority == max(1.0, max(expected.values()) ** (1 / 0.7)) or changed.max_priority > 1.0


def test_padding_in_the_mean_is_seen(monkeypatch):
    """Deliberate defects: the mean over the padded length, and padding that is not left out."""
    mix = sequences.mix_over_time
    defects = (
        lambda errors, is_step, eta: eta * errors.max(axis=0) + (1 - eta) * errors.mean(axis=0),
        lambda errors, is_step, eta: mix(errors, np.ones_like(is_step), eta),
    )
    for defect in defects:
        monkeypatch.setattr(sequences, "mix_over_time", defect)
        with pytest.raises(AssertionError):
            test_priority_of_a_window(0.3, None, "mean")


def test_stale_windows_are_skipped():
    """Overwritten, or retired while their rows are still there; also where what stands in their place now is longer."""
    buffer = make_sequences(40, 1, sequence_length=3, burn_in=2)
    reference = Reference(buffer, p_end=0.4)
    reference.play(30)
    reference.check(buffer)
    ids = buffer.transition_ids[buffer.priorities > 0]
    n_stale = []
    for _ in range(30):
        reference.play(2)
        td_errors = np.full((3, len(ids)), 5.0)
        # Without a mask, of a window that is gone nothing is known: what may have been padding does not count.
        td_errors[1:] = np.where(buffer._mask_of(ids)[1:], td_errors[1:], np.nan)
        before = buffer.priorities
        written = buffer.update_priorities(ids, td_errors)
        is_held = buffer._can_be_drawn(ids)
        assert written == is_held.sum()
        changed = buffer.transition_ids[buffer.priorities != before]
        assert set(changed) <= set(ids[is_held])
        n_stale.append(len(ids) - written)
    assert n_stale[0] == 0 and n_stale[-1] == len(ids) and sorted(n_stale) == n_stale


@pytest.mark.parametrize(
    "ids, td_errors, mask, error, message",
    [
        ([0, 10**6], np.ones((6, 2)), None, IndexError, "1000000"),
        ([-1], np.ones((6, 1)), None, IndexError, "-1"),
        ([0.5], np.ones((6, 1)), None, IndexError, "integers"),
        ([[0]], np.ones((6, 1)), None, ValueError, r"\(1, 1\)"),
        ([0], np.ones((5, 1)), None, ValueError, r"\(5, 1\) do not fit 1 windows of 6 steps"),
        ([0], np.ones((1, 6)), None, ValueError, r"\(1, 6\)"),
        ([0], np.ones(6), None, ValueError, r"\(6,\)"),
        ([0], np.ones((6, 1, 0)), None, ValueError, r"\(6, 1, 0\)"),
        ([0], np.full((6, 1), np.nan), None, ValueError, "nan"),
        ([0], np.full((6, 1), -np.inf), np.ones((6, 1)), ValueError, "inf"),
        ([0], np.ones((6, 1)), np.ones((1, 6)), ValueError, r"mask of shape \(1, 6\)"),
        ([0, 2], np.ones((6, 2)), np.arange(2) * np.ones((6, 1)), ValueError, "window 0"),
    ],
)
def test_bad_updates_change_nothing(ids, td_errors, mask, error, message):
    buffer = played()
    buffer.sample(1)
    before = pickle.dumps(buffer)
    with pytest.raises(error, match=message):
        buffer.update_priorities(np.array(ids), td_errors, mask)
    assert pickle.dumps(buffer) == before


def test_no_windows():
    buffer = played()
    assert buffer.update_priorities(np.empty(0, np.int64), np.empty((6, 0))) == 0


# ---- what comes in


def test_episode_starts():
    """Where nobody says so, behind a done; where the one before had no end, it becomes a truncation."""
    buffer = make_sequences(10, 3, sequence_length=2)
    zeros = np.zeros((3, 2))
    for done, starts in (([0, 1, 0], None), ([0, 0, 0], None), ([0, 0, 1], [0, 1, 1]), ([0, 0, 0], [0, 0, 0])):
        told = None if starts is None else np.array(starts)
        buffer.add(zeros, zeros, np.zeros((3, 1)), np.zeros(3), np.array(done), [{}] * 3, episode_starts=told)
    np.testing.assert_array_equal(buffer.episode_steps[:4], [[0, 0, 0], [1, 0, 1], [2, 0, 0], [3, 1, 0]])
    np.testing.assert_array_equal(buffer.dones[:4], [[0, 1, 0], [0, 1, 1], [0, 0, 1], [0, 0, 0]])
    np.testing.assert_array_equal(buffer.timeouts[:4], [[0, 0, 0], [0, 1, 1], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize("n_rows", [1, 7])
def test_a_failed_add_changes_nothing_that_can_be_drawn(n_rows):
    buffer = make_sequences(n_rows, 2, sequence_length=1, burn_in=0)
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
        assert buffer._n_added == 9
        assert reference.check(buffer)
    reference.play(5)
    reference.check(buffer)


@pytest.mark.parametrize("is_counted", [False, True])
def test_an_interrupted_add(is_counted, monkeypatch):
    """Ctrl-C when the step is stored, before or after it is counted: it is there, and nothing is known of its state."""
    buffer = make_sequences(15, 2, burn_in=1, sequence_period=2)
    reference = Reference(buffer)
    write = TransitionRing._write_step

    def interrupted(self: Any, *args: Any) -> None:
        write(self, *args)
        self._n_added -= not is_counted
        raise KeyboardInterrupt

    for _ in range(25):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(TransitionRing, "_write_step", interrupted)
            reference.play()
        for steps in reference.steps:
            steps[-1] = steps[-1]._replace(state=0.0)
        reference.play(int(reference.rng.integers(1, 6)))
        reference.check(buffer)


@pytest.mark.parametrize("make", [np.asarray, th.tensor, lambda state: th.tensor(state, requires_grad=True)])
def test_states_of_any_kind(make):
    buffer = make_sequences(30, 2, burn_in=0, sequence_length=2)
    zeros = np.zeros((2, 2))
    for number in range(1, 9):
        states = tuple(make(state) for state in states_of(np.full(2, float(number))))
        buffer.add(zeros, zeros, np.zeros((2, 1)), np.zeros(2), np.zeros(2), [{}] * 2, states=states)
    batch = buffer._gather(np.array([0, 5, 8]), np.ones((3, 1), np.float32), None)
    for state, expected in zip(batch.states, states_of(np.array([0.0, 3.0, 5.0])), strict=True):
        assert state.dtype is th.float32 and state.is_contiguous()
        np.testing.assert_array_equal(state, expected)


def test_memory_of_states():
    """A million rows, an LSTM of 256 units and a period of 40: 51 MB, not 2 GB."""
    buffer = make_sequences(10**6, 1, sequence_length=40, state_shapes=((1, 256), (1, 256)))
    assert sum(array.nbytes for array in buffer._states.arrays) == 51_200_000
    assert not any(array.size for array in make_sequences(100, store_state=False)._states.arrays)


# ---- what goes out


@pytest.mark.parametrize("obs_space", ["image", "discrete", "multi_discrete", "dict"])
@pytest.mark.parametrize("normalize", [False, True])
def test_observations_of_every_kind(obs_space, normalize):
    """Time first, padding 0 also where it is normalized, values as in a batch of single transitions."""
    space, action_space = OBSERVATION_SPACES[obs_space], spaces.Discrete(3)
    if normalize and obs_space not in ("dict", "image"):
        pytest.skip("VecNormalize is for Box observations")
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
        import gymnasium as gym

        norm = {"vec": space["vec"]} if is_dict else None
        env = normalizer(gym.spaces.Dict(norm) if norm else space, action_space)
    batch = buffer.sample(12, env=env)
    for b, id_ in enumerate(batch.indices):
        n_before, n_learned = int(batch.prefix_lengths[b]), int(batch.mask[:, b].sum())
        leaves = (id_ + np.arange(-n_before, n_learned) * 2) % 80
        expected = plain._gather(leaves, np.ones((len(leaves), 1), np.float32), env)
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


@pytest.mark.parametrize("is_dict", [False, True])
def test_frames(is_dict):
    """Stored once, they come out as from plain arrays."""
    image = spaces.Box(0, 255, (3, 4, 4), np.uint8)
    space = spaces.Dict({"image": image, "vec": SPACES[0]}) if is_dict else image
    cls = PrioritizedDictSequenceReplayBuffer if is_dict else PrioritizedSequenceReplayBuffer
    kwargs: dict[str, Any] = dict(device="cpu", n_envs=2, sequence_length=4, burn_in=3, n_steps=2)
    plain = cls(60, space, SPACES[1], **kwargs)
    framed = cls(60, space, SPACES[1], frames=dict(image=3) if is_dict else 3, **kwargs)
    rng = np.random.default_rng(0)

    def observation(stack: np.ndarray) -> Any:
        return {"image": stack.copy(), "vec": stack[:, 0, 0, :2] / 255} if is_dict else stack.copy()

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
    for name in ("observations", "prefix"):
        pairs = [(getattr(actual, name), getattr(expected, name))]
        if is_dict:
            pairs = [(pairs[0][0][key], pairs[0][1][key]) for key in ("image", "vec")]
        for found, wanted in pairs:
            assert th.equal(found, wanted)


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(uniform_fraction=0.3),
        dict(unique=True),
        dict(weight_normalization="none"),
        dict(weight_normalization="mean", uniform_fraction=0.2),
        dict(initial_priority="mean"),
        dict(max_priority_interval=2),
        dict(actor_batch="weighted"),
        dict(scheme="uniform", stratified=False),
        dict(scheme="rank", uniform_fraction=0.5, unique=True),
    ],
)
def test_settings_of_the_draw(kwargs):
    """They are about windows: N counts those that can be drawn, and only they are."""
    buffer = make_sequences(60, 2, **kwargs)
    reference = Reference(buffer)
    for round_ in range(15):
        reference.play(8)
        n = buffer._n_drawable if round_ else 1
        batch = buffer.sample(max(min(n, 4), 1))
        assert set(batch.indices) <= set(buffer.transition_ids[buffer.priorities > 0])
        if kwargs.get("unique"):
            assert len(set(batch.indices)) == len(batch.indices)
        if kwargs.get("weight_normalization") == "none":
            masses = buffer.priorities
            n_p = masses.ravel()[batch.indices % masses.size] * (masses > 0).sum() / masses.sum()
            np.testing.assert_allclose(batch.weights[:, 0], n_p**-buffer.beta, rtol=1e-5)
        assert (batch.n_p is not None) == (kwargs.get("actor_batch") == "weighted")
        buffer.update_priorities(batch.indices, np.random.exponential(size=batch.mask.shape))
        reference.check(buffer)


def test_what_is_not_for_sequences():
    buffer = played()
    with pytest.raises(NotImplementedError, match="lack their past"):
        buffer.sample_observations(4)
    with pytest.raises(NotImplementedError, match="single rows"):
        buffer._get_samples(np.arange(3))


@pytest.mark.parametrize("scheme", ["proportional", "uniform"])
def test_no_python_pass_over_the_batch(scheme):
    buffer = make_sequences(100, 2, scheme=scheme, n_steps=3)
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


# ---- refusals


@pytest.mark.parametrize(
    "kwargs, error, message",
    [
        (dict(sequence_length=0), ValueError, "sequence_length .* not 0"),
        (dict(sequence_length=2.0), ValueError, "not 2.0"),
        (dict(burn_in=-1), ValueError, "burn_in .* not -1"),
        (dict(burn_in=False), ValueError, "not False"),
        (dict(sequence_period=0), ValueError, "sequence_period .* not 0"),
        (dict(sequence_period=5), ValueError, "from 1 to sequence_length=4, not 5: .* never be learned"),
        (dict(eta=1.1), ValueError, r"eta .* \[0, 1\], not 1.1"),
        (dict(eta=np.nan), ValueError, "not nan"),
        (dict(state_shapes=((2,),)), ValueError, r"state_shapes .* not \(\(2,\),\)"),
        (dict(state_shapes=((1, 0),)), ValueError, "state_shapes"),
        (dict(alpha=-1.0), ValueError, "-1"),
        (dict(scheme="lap"), NotImplementedError, "LAP.* with sequences is not supported: "),
        (dict(scheme="pal"), NotImplementedError, "PAL"),
        (dict(optimize_memory_usage=True, handle_timeout_termination=False), NotImplementedError, "optimize_memory_usage"),
        (dict(recency=0.99), NotImplementedError, "recency=0.99"),
        (dict(initial_priority="td_error"), NotImplementedError, "initial_priority"),
        (dict(actor_batch="uniform"), NotImplementedError, "actor_batch"),
    ],
)
def test_refused_before_anything_is_allocated(kwargs, error, message):
    # A buffer of this size would not fit into any memory.
    with pytest.raises(error, match=message):
        make_sequences(10**15, **kwargs)


def test_agents_without_memory_are_refused():
    kwargs = dict(replay_buffer_class=PrioritizedSequenceReplayBuffer, buffer_size=100)
    with pytest.raises(NotImplementedError, match=r"PERDQN with PrioritizedSequenceReplayBuffer .* no memory"):
        PERDQN("MlpPolicy", "CartPole-v1", **kwargs)


def test_hindsight_is_refused():
    class Hindsight(PrioritizedDictSequenceReplayBuffer, HerReplayBuffer):
        pass

    with pytest.raises(NotImplementedError, match="hindsight"):
        Hindsight(100, OBSERVATION_SPACES["dict"], SPACES[1])


def test_a_buffer_without_a_whole_window():
    """Too few steps yet, and a ring that will never hold enough, as RL Zoo makes one to play from."""
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


# ---- copies and files


@pytest.mark.parametrize("n_played", [3, 17, 95])
@pytest.mark.parametrize("how", ["pickle", "deepcopy", "files"])
@pytest.mark.parametrize("scheme", ["proportional", "rank"])
def test_copies_in_mid_episode(how, n_played, scheme, tmp_path):
    """They go on as the original does: the same draws, windows and states, to the bit."""
    buffer = make_sequences(40, 2, n_steps=2, scheme=scheme)
    reference = Reference(buffer, p_end=0.05)
    reference.play(n_played, p_told=0.02)
    if buffer.priorities.any():
        batch = buffer.sample(9)
        buffer.update_priorities(batch.indices, np.random.default_rng(0).normal(size=(4, 9)))
    reference.play(2)
    if how == "files":
        save_buffer(buffer, tmp_path / "a.buffer")
        clone = load_buffer(make_sequences(40, 2, n_steps=2, scheme=scheme), tmp_path / "a.buffer")
    else:
        clone = pickle.loads(pickle.dumps(buffer)) if how == "pickle" else copy.deepcopy(buffer)
        assert_same_state(clone, buffer)
    reference.buffers = (buffer, clone)
    for _ in range(30):
        reference.check(clone)
        np.testing.assert_array_equal(clone.priorities, buffer.priorities)
        reference.play(3)
    batches = []
    for each in (buffer, clone):
        np.random.seed(0)
        batches.append(each.sample(20))
    assert_same_batches(*batches)


def assert_same_batches(actual: SequenceReplayBufferSamples, expected: SequenceReplayBufferSamples) -> None:
    for name, part in actual._asdict().items():
        other = getattr(expected, name)
        for a, b in zip(part, other, strict=True) if isinstance(part, tuple) else [(part, other)]:
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n_rows", [15, 41, 90])
@pytest.mark.parametrize("n_played", [12, 95])
@pytest.mark.parametrize("other", [{}, dict(sequence_length=6, sequence_period=4), dict(n_steps=4), dict(alpha=0.1)])
def test_files_of_another_size_or_window(n_rows, n_played, other, tmp_path):
    """What comes along is right, whatever the size, also where windows are longer now; the state of each is still its own."""
    buffer = make_sequences(40, 2, n_steps=2)
    reference = Reference(buffer, p_end=0.05)
    reference.play(n_played, p_told=0.02)
    buffer.priorities  # noqa: B018
    save_buffer(buffer, tmp_path / "a.buffer")
    target = make_sequences(n_rows, 2, **{"n_steps": 2, **other})
    if "alpha" in other:
        with pytest.warns(UserWarning, match="priorities are the largest"):
            loaded = load_buffer(target, tmp_path / "a.buffer")
    else:
        loaded = load_buffer(target, tmp_path / "a.buffer")
    reference.buffers = (loaded,)
    for _ in range(n_rows // 4 + 4):
        reference.check(loaded, is_whole=False)
        reference.play(5)
    reference.check(loaded)


def test_files_that_do_not_fit(tmp_path):
    buffer = make_sequences(40)
    Reference(buffer).play(30)
    save_buffer(buffer, tmp_path / "a.buffer")
    for other in (dict(burn_in=2), dict(sequence_period=2), dict(state_shapes=())):
        with pytest.raises(ValueError, match=r"does not fit this model.*sequences"):
            load_buffer(make_sequences(40, **other), tmp_path / "a.buffer")
    plain = PrioritizedReplayBuffer(80, *SPACES, device="cpu", n_envs=2)
    with pytest.raises(ValueError, match="kind PrioritizedSequenceReplayBuffer"):
        load_buffer(plain, tmp_path / "a.buffer")


# ---- from other buffers


@pytest.mark.parametrize("n_played", [14, 70])
@pytest.mark.parametrize("source", ["stock", "prioritized"])
def test_from_transitions(source, n_played):
    """Their episodes end where they are done; of the states nothing is known."""
    cls: Any = ReplayBuffer if source == "stock" else PrioritizedReplayBuffer
    plain = cls(60, *SPACES, device="cpu", n_envs=2)
    reference = Reference(plain)
    reference.play(n_played, foreign=True)
    kwargs: dict[str, Any] = dict(sequence_length=4, burn_in=3, state_shapes=SHAPES)
    buffer = PrioritizedSequenceReplayBuffer.from_replay_buffer(plain, **kwargs)
    reference.buffers = (buffer,)
    for steps in reference.steps:
        # What came before the oldest step is not there: an episode starts with it.
        n_before = steps[-30].t if n_played > 30 else 0
        for i in range(-30, 0) if n_before else ():
            if steps[i].t == n_before + 30 + i:
                steps[i] = steps[i]._replace(t=steps[i].t - n_before)
    for _ in range(20):
        reference.check(buffer, is_whole=False)
        reference.play(3)
    reference.check(buffer)


@pytest.mark.parametrize(
    "changed", [dict(alpha=0.3), dict(beta_end=0.9), dict(eta=0.1), dict(sequence_length=2), dict(n_steps=3), dict(burn_in=1)]
)
def test_another_setting(changed):
    """Priorities stay unless the scheme or the windows change; states stay where the prefixes do."""
    buffer = make_sequences(40, 2, sequence_period=2, n_steps=2)
    reference = Reference(buffer, p_end=0.1)
    reference.play(95)
    buffer.update_priorities(buffer.sample(9).indices, np.full((4, 9), 3.0))
    before, ids = buffer.priorities, buffer.transition_ids
    after = PrioritizedSequenceReplayBuffer.from_replay_buffer(buffer, **changed)
    for name, value in changed.items():
        assert getattr(after, name, after.scheme.alpha) == value
    np.testing.assert_array_equal(after.transition_ids, ids)
    keeps = set(changed) <= {"beta_end", "eta"}
    assert (after.priorities == before).all() == keeps
    reference.buffers = (after,)
    if "burn_in" not in changed:
        reference.check(after, is_whole=keeps)
    reference.play(60)
    reference.check(after)


def test_to_transitions():
    """All of them can be drawn then, as new ones."""
    buffer = played()
    plain = PrioritizedReplayBuffer.from_replay_buffer(buffer)
    assert type(plain) is PrioritizedReplayBuffer
    assert (plain.priorities[:50] == plain.priorities[0, 0]).all()
    assert plain.sample(30).observations.shape == (30, 2)


def test_reset():
    buffer = played()
    old = buffer.sample(20)
    buffer.reset()
    assert not buffer.priorities.any()
    reference = Reference(buffer)
    reference.play(30)
    assert buffer.update_priorities(old.indices, np.ones((6, 20))) == 0
    reference.check(buffer)


def test_other_buffers_do_not_take_part():
    """The class of a buffer without sequences knows none of this."""
    assert not {"eta", "burn_in"} & PrioritizedReplayBuffer._keywords()
    assert {"eta", "burn_in"} <= PrioritizedSequenceReplayBuffer._keywords()
