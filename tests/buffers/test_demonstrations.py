"""Demonstrations: their share of each batch, draw probabilities and weights, and that experience never overwrites them."""

import copy
import pickle
from typing import Any

import numpy as np
import pytest
import torch as th
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per import (
    PERSAC,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    PrioritizedSequenceReplayBuffer,
)
from sb3_per.buffers.arrays import ARRAYS
from sb3_per.buffers.conversion import continue_from
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from tests.helpers.buffers import (
    ACTION_SPACES,
    OBSERVATION_SPACES,
    assert_same,
    assert_same_batches,
    assert_same_state,
    brute_force_n_step,
    contents_of,
    fill,
    filled_buffer,
    make_buffer,
    normalizer,
    stock_like,
)
from tests.helpers.demonstrations import bounded, demonstration_ids, demonstrations, mixed, record
from tests.helpers.frames import ACTIONS, Stream, shape_of
from tests.helpers.her import Player, make_env, make_her
from tests.helpers.messages import no_user_warnings

pytestmark = pytest.mark.filterwarnings("ignore:The buffer has .* demonstrations")


@settings(max_examples=30, deadline=None)
@given(share=st.floats(0.001, 1.0), batch_size=st.integers(1, 300), seed=st.integers(0, 3))
def test_each_batch_has_exactly_the_set_share_of_demonstrations(share, batch_size, seed):
    buffer = make_buffer(12, 2, demonstration_fraction=share)
    buffer.add_demonstrations(*demonstrations(buffer.observation_space, 5, seed=seed))
    fill([buffer], 20)
    batch = buffer.sample(batch_size)
    assert batch.is_demonstration.shape == (batch_size,) and batch.is_demonstration.dtype == bool
    assert batch.is_demonstration.sum() == round(share * batch_size)
    np.testing.assert_array_equal(batch.rewards.numpy()[:, 0] >= 1000.0, batch.is_demonstration)
    assert batch.indices.dtype == np.int64 and batch.weights.max() == 1.0 and len(batch.weights) == batch_size


@pytest.mark.parametrize(
    "kwargs, stratified",
    [
        (dict(beta_start=0.7), True),
        (dict(scheme="rank"), False),
        (dict(scheme="lap", kappa=0.1), True),
        (dict(scheme="uniform"), False),
    ],
    ids=str,
)
def test_probabilities_and_weights_follow_the_mixture(kwargs, stratified):
    """Experience has P(i) = (1 - s) m_i / sum m, demonstrations s m_i / sum m; each sum covers its own part."""
    buffer = make_buffer(12, 1, demonstration_fraction=0.25, stratified=stratified, **kwargs)
    buffer.add_demonstrations(*demonstrations(buffer.observation_space, 7))
    fill([buffer], 20)
    errors = {i: float(e) for i, e in enumerate(np.random.default_rng(1).exponential(size=20) ** 2)}
    demo_ids = demonstration_ids(buffer)
    errors |= {int(i): e for i, e in zip(demo_ids, np.random.default_rng(2).exponential(size=7), strict=True)}
    buffer.update_priorities(np.array(list(errors)), np.array(list(errors.values())))

    parts = []
    for ids, share in ((np.arange(8, 20), 0.75), (demo_ids, 0.25)):
        td = np.array([errors[int(i)] for i in ids])
        masses = {
            "proportional": (td + 1e-6) ** 0.6,
            "rank": (1.0 + np.argsort(np.argsort(-td))) ** -0.7,
            "lap": np.maximum(td, 0.1) ** 0.4,
            "uniform": np.ones(len(td)),
        }[kwargs.get("scheme", "proportional")]
        parts.append({int(i): share * m for i, m in zip(ids, masses / masses.sum(), strict=True)})
    probability = parts[0] | parts[1]

    batches = [buffer.sample(64) for _ in range(200)]
    counts = {i: 0 for i in probability}
    for batch in batches:
        for i in batch.indices.tolist():
            counts[i] += 1
    expected = np.array(list(probability.values())) * 64 * 200
    if stratified:  # the counts vary far less than those of independent draws
        np.testing.assert_allclose(list(counts.values()), expected, atol=5 * np.sqrt(expected.max()))
    else:
        # 18 degrees of freedom: the probability of more is 2e-6.
        assert ((np.array(list(counts.values())) - expected) ** 2 / expected).sum() < 60.0

    batch = buffer.sample(64)
    weights = np.array([(19 * probability[i]) ** -buffer.beta for i in batch.indices.tolist()])
    if kwargs.get("scheme") in ("lap", "uniform"):
        weights[:] = 1.0
    np.testing.assert_allclose(batch.weights.numpy()[:, 0], weights / weights.max(), rtol=1e-5)


@pytest.mark.parametrize("unique", [False, True])
def test_weights_correct_neither_the_age_nor_the_emphasis_of_the_newest(unique):
    """With equal masses of experience, weights are those of a batch without `recency`, whatever the mass is."""
    weights = []
    for emphasis in ({}, dict(recency=0.9, recency_min=8)):
        buffer = make_buffer(12, demonstration_fraction=0.25, beta_start=0.5, unique=unique, **emphasis)
        buffer.add_demonstrations(*demonstrations(buffer.observation_space, 7))
        fill([buffer], 12)
        buffer.update_priorities(np.arange(12), np.full(12, 7.0))
        batch = buffer.sample(8, series_progress=1.0)
        weights.append(batch.weights[~batch.is_demonstration])
    th.testing.assert_close(weights[1], weights[0])
    assert not (weights[0] == 1.0).all()


def test_demonstrations_without_a_share_are_never_drawn():
    """Without `demonstration_fraction`, every draw equals that of a buffer without demonstrations, bit for bit."""
    plain, other = (make_buffer(12, 2, n_steps=3) for _ in range(2))
    other.add_demonstrations(*demonstrations(other.observation_space, 5))
    fill([plain, other], 20)
    for _ in range(5):
        batches = []
        for buffer in (plain, other):
            np.random.seed(0)
            batch = buffer.sample(16)
            assert batch.is_demonstration is None
            buffer.update_priorities(batch.indices, np.arange(16.0))
            batches.append(batch)
        assert_same_batches(*batches)


def test_demonstrations_stay_after_ten_laps_and_a_reset():
    buffer = mixed(n_demonstrations=9)
    kept = copy.deepcopy([getattr(buffer.demonstrations.buffer, name) for name in ARRAYS])
    ids = demonstration_ids(buffer)
    fill([buffer], 120, seed=1)
    buffer.reset()
    for name, before in zip(ARRAYS, kept, strict=True):
        assert_same_state(getattr(buffer.demonstrations.buffer, name), before)
    np.testing.assert_array_equal(demonstration_ids(buffer), ids)
    assert buffer.size() == 0 and buffer.update_priorities(ids, np.ones(9)) == 9
    batch = buffer.sample(10)  # the buffer holds nothing else
    assert batch.is_demonstration.all()


@settings(max_examples=12, deadline=None)
@given(sizes=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), min_size=1, max_size=6))
def test_demonstrations_stay_intact_while_their_arrays_grow(sizes):
    """Ids stay the same when arrays grow, and n-step windows never cross the border between two recordings."""
    buffer = make_buffer(5, 2, demonstration_fraction=1.0, n_steps=3)
    expected: list[Any] = []
    for seed, (n, k) in enumerate(sizes):
        added = demonstrations(buffer.observation_space, n, k, seed=seed)
        buffer.add_demonstrations(*added)
        obs, _, actions, rewards, dones, infos = added
        for env in range(k):
            for t in range(n):
                is_last = t == n - 1
                truncated = infos[t][env]["TimeLimit.truncated"] or (is_last and not dones[t, env])
                expected.append((obs[t, env], actions[t, env], rewards[t, env], dones[t, env] or is_last, truncated))
    assert len(buffer.demonstrations) == len(expected)
    batch = buffer.sample(100)
    first = int(demonstration_ids(buffer)[0])
    steps = [(float(reward), bool(done), bool(truncated)) for _, _, reward, done, truncated in expected]
    for i, index in enumerate(batch.indices - first):
        value, discount, _, done = brute_force_n_step(steps, index, 3, 0.99)
        np.testing.assert_array_equal(batch.observations[i], expected[index][0])
        np.testing.assert_array_equal(batch.actions[i], expected[index][1])
        assert batch.rewards[i].item() == pytest.approx(value, rel=1e-6)
        assert batch.discounts[i].item() == pytest.approx(discount) and batch.dones[i].item() == done


def test_priorities_of_demonstrations_are_updated_by_id():
    buffer = mixed(n_demonstrations=6)
    ids = demonstration_ids(buffer)
    batch = buffer.sample(40)
    before = buffer.masses
    assert buffer.update_priorities(ids, np.array([0, 0, 0, 0, 0, 1e9])) == 6
    np.testing.assert_array_equal(buffer.masses, before)
    batch = buffer.sample(40)
    assert set(batch.indices[batch.is_demonstration]) == {ids[5]}


def test_a_refused_update_changes_neither_experience_nor_demonstrations():
    for bad in ["id", "error of a demonstration", "error of experience", "unknown id"]:
        buffer = mixed()
        batch = buffer.sample(40)
        ids, errors = batch.indices.copy(), np.ones(40)
        if bad == "id":
            ids[-1] = demonstration_ids(buffer)[-1] + 1
        elif bad == "unknown id":
            ids[0] = 10_000
        else:
            errors[-1 if bad == "error of a demonstration" else 0] = np.nan
        before = pickle.dumps(buffer)
        with pytest.raises(IndexError if "id" in bad else ValueError, match=r"never issued|finite"):
            buffer.update_priorities(ids, errors)
        assert pickle.dumps(buffer) == before


def test_demonstration_share_falls_with_training_progress_and_never_rises():
    buffer = mixed(demonstration_fraction=0.5, demonstration_fraction_end=0.1)
    for remaining, share in ((1.0, 0.5), (0.5, 0.3), (0.75, 0.3), (0.0, 0.1), (1.0, 0.1)):
        buffer.update_beta(remaining)
        assert buffer.sample(100).is_demonstration.sum() == round(100 * share)


def test_share_stays_at_its_end_after_the_end_of_training():
    """SB3's progress falls below 0 if the last steps of several environments go beyond the end."""
    buffer = mixed(demonstration_fraction=0.5, demonstration_fraction_end=0.0)
    buffer.update_beta(-0.2)
    assert not buffer.sample(20).is_demonstration.any()
    copied = mixed(demonstration_fraction=0.5)
    continue_from(copied, buffer)
    assert copied.sample(20).is_demonstration.sum() == 10


# ---- kinds of buffers


@pytest.mark.parametrize("obs_space, n_steps", [("box", 1), ("dict", 3)])
def test_demonstrations_are_read_like_ordinary_transitions(obs_space, n_steps):
    """Check against a plain prioritized buffer with the same rows; normalization happens when a batch is drawn."""
    space = OBSERVATION_SPACES[obs_space]
    buffer = make_buffer(10, 2, obs_space, demonstration_fraction=0.5, n_steps=n_steps)
    fill([buffer], 15)
    added = demonstrations(space, 6, seed=5)
    added[4][-1] = True  # demonstrations end with an episode in any case, the plain buffer does not
    buffer.add_demonstrations(*added)
    plain = make_buffer(6, 1, obs_space, n_steps=n_steps)
    plain.extend(*added)
    env = normalizer(space, ACTION_SPACES["box"]) if obs_space == "box" else None
    batch = buffer.sample(20, env=env)
    slots = batch.indices[10:] - demonstration_ids(buffer)[0]
    expected = plain.read_drawn(slots, env)
    for name in ("observations", "actions", "next_observations", "dones", "rewards", "discounts"):
        value = getattr(batch, name)
        half = {k: v[10:] for k, v in value.items()} if isinstance(value, dict) else None if value is None else value[10:]
        assert_same(half, getattr(expected, name))


def test_frames_of_demonstrations_are_stored_once():
    space = spaces.Box(0, 255, shape_of("channels first", 4), np.uint8)
    framed = PrioritizedReplayBuffer(24, space, ACTIONS, "cpu", 1, frames=4, demonstration_fraction=1.0)
    stream = Stream("channels first", 4, np.uint8, 1, 0)
    steps = [stream.step() for _ in range(60)]
    obs, next_obs, dones, infos = (list(part) for part in zip(*steps, strict=True))
    framed.add_demonstrations(
        np.array(obs), np.array(next_obs), np.zeros((60, 1, 1)), np.zeros((60, 1)), np.array(dones), infos
    )
    batch = framed.sample(200)
    rows = batch.indices - demonstration_ids(framed)[0]
    np.testing.assert_array_equal(batch.observations.numpy(), np.array(obs)[rows, 0])
    np.testing.assert_array_equal(batch.next_observations.numpy(), np.array(next_obs)[rows, 0])
    assert framed.demonstrations.buffer.observations.store.n_held < 2 * 60
    plain = PrioritizedReplayBuffer.from_replay_buffer(framed, frames=None)
    np.testing.assert_array_equal(plain.demonstrations.buffer.observations[:60, 0], np.array(obs)[:, 0])


@pytest.mark.parametrize("update_from_virtual", [True, False])
def test_her_keeps_the_goals_of_demonstrations(update_from_virtual):
    env = make_env(2)
    buffer = make_her(PrioritizedHerReplayBuffer, env, demonstration_fraction=0.5, update_from_virtual=update_from_virtual)
    other = make_her(PrioritizedHerReplayBuffer, env)
    Player(env, other, seed=3).step(10)
    buffer.add_demonstrations_from(other)
    assert len(buffer.demonstrations) == 20
    batch = buffer.sample(8)  # HER cannot draw experience before an episode has ended
    assert batch.is_demonstration.all()
    Player(env, buffer).step(12)
    batch = buffer.sample(40)
    assert batch.is_demonstration.tolist() == [False] * 20 + [True] * 20
    first = demonstration_ids(buffer)[0]
    steps, envs = np.divmod(batch.indices[20:] - first, 10)[::-1]
    np.testing.assert_array_equal(batch.observations["desired_goal"][20:], other.observations["desired_goal"][steps, envs])
    np.testing.assert_array_equal(batch.rewards[20:, 0], other.rewards[steps, envs])
    n_written = buffer.update_priorities(batch.indices, np.ones(40))
    assert n_written == (40 if update_from_virtual else 20 + 20 - int(buffer.her_ratio * 20))


def test_demonstrations_may_have_another_number_of_environments():
    buffer = make_buffer(10, 4, demonstration_fraction=0.5)
    buffer.add_demonstrations(*demonstrations(buffer.observation_space, 5, k=1))
    buffer.add_demonstrations(*demonstrations(buffer.observation_space, 5, k=3))
    assert len(buffer.demonstrations) == 20 and buffer.size() == 0


def test_add_demonstrations_from_takes_all_transitions_of_a_buffer():
    for kind in ("prioritized", "stock", "itself"):
        buffer, other = make_buffer(12, 2, demonstration_fraction=1.0), make_buffer(12, 2)
        stock = stock_like(other)
        fill([other, stock, buffer], 30)
        buffer.add_demonstrations_from({"prioritized": other, "stock": stock, "itself": buffer}[kind])
        rewards = buffer.sample(300).rewards
        assert set(rewards.ravel().tolist()) == set(other.rewards.ravel().tolist()), kind


def rewards_of(buffer: PrioritizedReplayBuffer) -> list[float]:
    """Rewards of all demonstrations, sorted."""
    return sorted(buffer.demonstrations.buffer.rewards[: len(buffer.demonstrations), 0].tolist())


def test_add_demonstrations_from_takes_experience_and_demonstrations():
    for n_expected in (24 + 9, 9):
        other, buffer = mixed(n_demonstrations=9), make_buffer(5, 3, demonstration_fraction=1.0)
        if n_expected == 9:
            other.reset()
        expected = np.concatenate([other.rewards[: other.size()].ravel(), rewards_of(other)])
        buffer.add_demonstrations_from(other)
        assert rewards_of(buffer) == sorted(expected.tolist())
        assert len(expected) == n_expected


def test_a_buffer_that_adds_itself_has_its_demonstrations_once():
    buffer = mixed(n_demonstrations=9)
    expected = sorted([*buffer.rewards.ravel().tolist(), *rewards_of(buffer)])
    buffer.add_demonstrations_from(buffer)
    assert rewards_of(buffer) == expected


# ---- actions that were recorded with other bounds


@pytest.mark.parametrize("shape, is_demonstration", [((2,), True), ((2, 3), False)])
def test_actions_recorded_with_other_bounds_are_scaled_anew(is_demonstration, shape):
    recorded, buffer = bounded(-4, 4, shape), bounded(-1, 3, shape, np.float64)
    raw = np.random.default_rng(0).uniform(-1, 3, (6, 2, *shape))
    record(recorded, raw, is_demonstration)
    buffer.add_demonstrations_from(recorded)
    stored = buffer.demonstrations.buffer.actions[:12, 0]
    expected = ((raw - 1) / 2).reshape(6, 2, -1).swapaxes(0, 1).reshape(12, -1)  # environment by environment
    np.testing.assert_allclose(stored, expected, atol=1e-6)


def test_an_action_outside_of_the_new_bounds_is_named_and_nothing_changes():
    for is_demonstration in (True, False):
        recorded, buffer = bounded(-4, 4), bounded(-1, 3)
        raw = np.full((6, 2, 2), 0.5)
        raw[4, 0, 1], raw[2, 1, 0] = -2.0, 3.5
        record(recorded, raw, is_demonstration)
        record(buffer, np.zeros((3, 2, 2)), is_demonstration=True)
        before = buffer.demonstrations.buffer.actions.copy()
        with pytest.raises(ValueError, match=r"Action 4 of 12 .* is \[ 0\.5 -2\. \], outside of .* Box\(-1\.0, 3\.0"):
            buffer.add_demonstrations_from(recorded)
        assert len(buffer.demonstrations) == 6
        np.testing.assert_array_equal(buffer.demonstrations.buffer.actions, before)


def test_another_number_of_actions_is_refused():
    recorded = bounded(-1, 1, (3,))
    fill([recorded], 3)
    with pytest.raises(ValueError, match="other buffer has action_space"):
        bounded(-1, 1, (2,)).add_demonstrations_from(recorded)


def test_arrays_of_one_environment_are_told_to_have_one_column():
    buffer = mixed()
    steps = [part[:, 0] if isinstance(part, np.ndarray) else part for part in demonstrations(buffer.observation_space, 4)]
    with pytest.raises(ValueError, match=r"\(n, k\), not \(4,\): .* each of k environments.* k is 1.* array\[:, None\]"):
        buffer.add_demonstrations(*steps)
    buffer.add_demonstrations(*(part[:, None] if isinstance(part, np.ndarray) else part for part in steps))


# ---- copies


def test_copies_keep_the_demonstrations():
    buffer = mixed(demonstration_fraction_end=0.1)
    buffer.update_beta(0.5)
    np.random.seed(3)
    expected = buffer.sample(32)
    for other in (
        pickle.loads(pickle.dumps(buffer)),
        copy.deepcopy(buffer),
        PrioritizedReplayBuffer.from_replay_buffer(copy.deepcopy(buffer)),
    ):
        np.random.seed(3)
        assert_same_batches(other.sample(32), expected)


def test_a_changed_scheme_keeps_demonstrations_and_resets_their_masses():
    buffer = mixed()
    rows = contents_of(buffer)
    other = PrioritizedReplayBuffer.from_replay_buffer(buffer, scheme="lap")
    assert other.settings.demonstration_fraction == 0.25
    batch = other.sample(28)
    counts = [(batch.indices == i).sum() for i in demonstration_ids(other)]
    assert counts == [1] * 7
    np.testing.assert_array_equal(contents_of(other)["rewards"][None], rows["rewards"][None])


# ---- errors


def test_sampling_without_demonstrations_says_how_to_add_some():
    buffer = make_buffer(demonstration_fraction=0.25)
    fill([buffer], 5)
    with pytest.raises(ValueError, match=r"demonstration_fraction=0.25 .* buffer.add_demonstrations"):
        buffer.sample(4)


def test_bad_demonstration_settings_are_refused():
    for settings_, error, message in [
        (dict(demonstration_fraction=-0.1), ValueError, "demonstration_fraction must be a number .* not -0.1"),
        (dict(demonstration_fraction=1.1), ValueError, "demonstration_fraction"),
        (dict(demonstration_fraction=0.2, demonstration_fraction_end=0.5), ValueError, "demonstration_fraction_end=0.5"),
        (dict(demonstration_fraction=0.2, optimize_memory_usage=True), NotImplementedError, "optimize_memory_usage"),
    ]:
        storage = dict(handle_timeout_termination=False) if "optimize_memory_usage" in settings_ else {}
        with pytest.raises(error, match=message):
            make_buffer(**settings_, **storage)


@pytest.mark.parametrize("cls", [PrioritizedReplayBuffer, ReplayBuffer])
def test_a_buffer_without_last_observations_is_refused(cls):
    """It holds the first observation of the next episode in their place."""
    buffer = make_buffer(demonstration_fraction=0.5)
    spaces_ = (buffer.observation_space, buffer.action_space)
    other = cls(12, *spaces_, "cpu", optimize_memory_usage=True, handle_timeout_termination=False)
    fill([other], 5)
    with pytest.raises(ValueError, match="optimize_memory_usage=True"):
        buffer.add_demonstrations_from(other)
    assert len(buffer.demonstrations) == 0


def test_sequences_refuse_demonstrations():
    spaces_ = (OBSERVATION_SPACES["box"], ACTION_SPACES["box"])
    with pytest.raises(NotImplementedError, match="demonstrations with sequences"):
        PrioritizedSequenceReplayBuffer(100, *spaces_, demonstration_fraction=0.5)
    buffer = PrioritizedSequenceReplayBuffer(100, *spaces_)
    with pytest.raises(NotImplementedError, match="sequences"):
        buffer.add_demonstrations(*demonstrations(spaces_[0], 5))


def test_refused_demonstrations_change_nothing():
    for wrong in range(6):
        buffer = mixed()
        added = demonstrations(buffer.observation_space, 4)
        added[wrong] = [
            np.zeros((4, 1, 9)),
            np.zeros((3, 1, 3)),
            np.zeros((4, 1, 5)),
            np.zeros(4),
            np.zeros((2, 1)),
            [[{}]] * 3,
        ][wrong]
        before = pickle.dumps(buffer)
        with pytest.raises(ValueError):
            buffer.add_demonstrations(*added)
        assert pickle.dumps(buffer) == before


def test_demonstrations_from_another_space_or_an_empty_buffer_are_refused():
    buffer = make_buffer(demonstration_fraction=0.5)
    with pytest.raises(ValueError, match="observation_space"):
        buffer.add_demonstrations_from(make_buffer(obs_space="box64"))
    with pytest.raises(ValueError, match="empty"):
        buffer.add_demonstrations_from(make_buffer())


def test_sample_observations_has_the_share_of_demonstrations():
    buffer = make_buffer(12, 1, demonstration_fraction=0.25, actor_batch="uniform")
    added = demonstrations(buffer.observation_space, 5, seed=9)
    buffer.add_demonstrations(*added)
    fill([buffer], 12)
    observations = buffer.sample_observations(40)
    known = {row.tobytes() for row in np.asarray(added[0], np.float32)[:, 0]}
    assert sum(row.numpy().tobytes() in known for row in observations) == 10
    assert isinstance(observations, th.Tensor)


def wide(n_rows: int = 12) -> PrioritizedReplayBuffer:
    """Make a buffer for actions in [-2, 2], which it stores scaled to [-1, 1]."""
    space = spaces.Box(-2, 2, (2,), np.float32)
    return PrioritizedReplayBuffer(n_rows, OBSERVATION_SPACES["box"], space, device="cpu", demonstration_fraction=0.5)


def test_actions_that_are_not_scaled_are_refused():
    """One action outside [-1, 1] is enough, and nothing is stored. Rounding is allowed."""
    buffer, other = wide(), wide()
    steps = demonstrations(buffer.observation_space, 6, 2)
    steps[2][3, 1, 0] = -1.00001
    buffer.add_demonstrations(*steps)
    steps[2][3, 1, 0] = -1.5
    other.extend(*(part[:, :1] if isinstance(part, np.ndarray) else part for part in steps[:5]), [[{}]] * 6)
    other.actions[3] = [[0.0, -1.5]]
    for attempt in (lambda: buffer.add_demonstrations(*steps), lambda: buffer.add_demonstrations_from(other)):
        with pytest.raises(ValueError, match=r"scaled to \[-1, 1\], .*, not -1\.5\. Give model\.policy\.scale_action"):
            attempt()
    assert len(buffer.demonstrations) == 12


def test_discrete_actions_need_no_scaling():
    buffer = make_buffer(12, 1, action_space="discrete", demonstration_fraction=0.5)
    steps = demonstrations(buffer.observation_space, 6)
    steps[2] = np.full((6, 1, 1), 2)
    buffer.add_demonstrations(*steps)
    assert (buffer.sample(4).actions == 2).all()


def test_demonstrations_that_no_batch_has_warn_once():
    buffer = make_buffer(12)
    fill([buffer], 5)
    with no_user_warnings():
        buffer.sample(2)
        buffer.add_demonstrations(*demonstrations(buffer.observation_space, 7))
        with pytest.warns(UserWarning, match=r"7 demonstrations, and demonstration_fraction=0\.0 .*fraction=0\.25"):
            buffer.sample(2)
        buffer.sample(2)


def test_demonstrations_for_pretraining_alone_do_not_warn():
    """Whole batches of demonstrations were drawn before, as ``pretrain`` draws them."""
    buffer = make_buffer(12)
    buffer.add_demonstrations(*demonstrations(buffer.observation_space, 7))
    fill([buffer], 5)
    with no_user_warnings():
        with buffer.only_demonstrations():
            buffer.sample(2)
        buffer.sample(2)


def test_demonstrations_from_anything_but_a_buffer_are_refused():
    model: Any = PERSAC("MlpPolicy", "Pendulum-v1", buffer_size=10, policy_kwargs=dict(net_arch=[4]))
    for other, message in ((model, "not a PERSAC: give model.replay_buffer$"), (5, "not a int$")):
        with pytest.raises(TypeError, match=f"takes a replay buffer, {message}"):
            make_buffer(12).add_demonstrations_from(other)


def test_the_first_demonstration_is_taken_over_and_saved(tmp_path):
    """One is as good as many."""
    buffer = make_buffer(4, demonstration_fraction=0.5)
    obs = np.full((1, 1, 3), 0.7, np.float32)
    buffer.add_demonstrations(obs, obs, np.zeros((1, 1, 2)), np.full((1, 1), 5.0), np.ones((1, 1)), [[{}]])
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make_buffer(4, demonstration_fraction=0.5), tmp_path / "x.buffer")
    for each in (buffer, type(buffer).from_replay_buffer(buffer, alpha=0.3), loaded):
        batch = each.sample(4)
        assert batch.is_demonstration.all()
        assert (batch.rewards == 5.0).all() and (batch.observations == np.float32(0.7)).all()


@pytest.mark.parametrize("handles_timeouts", [False, True])
def test_a_cut_in_mid_episode_is_a_truncation(handles_timeouts):
    """With and without SB3's ``handle_timeout_termination``, as where actors append steps."""
    buffer = PrioritizedReplayBuffer(
        12,
        OBSERVATION_SPACES["box"],
        ACTION_SPACES["box"],
        "cpu",
        handle_timeout_termination=handles_timeouts,
        demonstration_fraction=1.0,
    )
    obs, next_obs, actions, rewards, dones, infos = demonstrations(buffer.observation_space, 5)
    buffer.add_demonstrations(obs, next_obs, actions, rewards, np.zeros_like(dones), infos)
    batch = buffer.sample(40)
    assert (batch.dones.numpy() == 0).all()


def test_an_id_of_a_demonstration_is_refused_where_there_are_none():
    buffer = make_buffer(12, demonstration_fraction=0.5)
    fill([buffer], 5)
    with pytest.raises(IndexError, match=str(2**62)):
        buffer.update_priorities(np.array([2**62]), np.ones(1))


@pytest.mark.parametrize("kind", ["plain", "her"])
def test_demonstrations_follow_a_device_that_is_set_later(kind):
    """SB3 sets it when a model loads a buffer from another device."""
    buffer = filled_buffer(kind, demonstration_fraction=0.5)
    obs, next_obs, actions, *rest = demonstrations(buffer.observation_space, 4)
    buffer.add_demonstrations(obs, next_obs, actions[..., : buffer.action_dim], *rest)
    buffer.device = th.device("meta")
    batch = buffer.sample(8)
    assert {batch.rewards.device.type, batch.actions.device.type, batch.weights.device.type} == {"meta"}
