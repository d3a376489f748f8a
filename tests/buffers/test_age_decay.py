"""``age_decay``: P(i) is proportional to p_i^alpha exp(-c age_i / capacity), for every kind of buffer."""

import itertools
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sb3_per import PrioritizedReplayBuffer, PriorityScheme, Proportional, SumTree
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from tests.helpers.buffers import MANY, counts_of, drawable_ids, fill, filled_buffer, make_buffer, probabilities
from tests.helpers.interrupts import interrupted
from tests.helpers.saved import KINDS, Goals, Player, make

pytestmark = pytest.mark.filterwarnings("ignore::sb3_per.buffers.settings.IgnoredSettingWarning")

#: Frames are left out: how observations are stored is nothing to a draw.
AGED = [kind for kind in KINDS if kind not in ("rank", "frames", "demonstrations")]
SCHEMES = ("proportional", "lap", "pal", "uniform")


def ages_of(buffer: PrioritizedReplayBuffer) -> np.ndarray:
    """Return the number of transitions that came after each, shape (buffer_size, n_envs)."""
    ids = buffer.transition_ids
    ages: np.ndarray = ids.max() - ids
    return ages


def factors_of(buffer: PrioritizedReplayBuffer, decay: float) -> np.ndarray:
    """Return exp(-c age / capacity) of every slot."""
    return np.exp(-decay * ages_of(buffer) / (buffer.buffer_size * buffer.n_envs))


def update(buffers: tuple[Any, ...], rng: np.random.Generator) -> None:
    """Give all buffers the same new TD errors, also of old transitions."""
    ids = drawable_ids(buffers[-1])
    if len(ids):
        ids = rng.choice(ids, size=4)
        errors = rng.exponential(size=4) ** 3
        for buffer in buffers:
            length = getattr(buffer, "sequence_length", None)
            buffer.update_priorities(ids, errors if length is None else np.tile(errors, (length, 1)))


def many_drawn(buffer: Any) -> np.ndarray:
    """Draw the same random batch from every buffer."""
    np.random.seed(3)
    drawn: np.ndarray = buffer.sample(MANY).indices
    return drawn


def assert_drawn_exactly(buffer: Any) -> None:
    """Stratified draws are within three of N P for every transition."""
    ids = drawable_ids(buffer)
    expected = MANY * probabilities(buffer, ids)
    assert (np.abs(counts_of(many_drawn(buffer), ids) - expected) <= 3).all()


@pytest.mark.parametrize("kind", AGED)
@settings(max_examples=5, deadline=None)
@given(decay=st.sampled_from([1e-9, 0.5, 3.0, 40.0]), seed=st.integers(0, 99), n_envs=st.integers(1, 3), data=st.data())
def test_masses_are_those_without_decay_times_a_factor_of_age(kind, decay, seed, n_envs, data):
    """Also after many laps, where a decay of 40 has made the tree multiply its masses by a constant several times."""
    scheme = data.draw(st.sampled_from(("proportional", "uniform") if kind == "sequences" else SCHEMES))
    changed = {} if scheme in ("proportional", "lap") else dict(initial_priority="max")
    aged, plain = (make(kind, 6, n_envs, **{**changed, **dict(scheme=scheme, age_decay=c)}) for c in (decay, 0.0))
    player, rng = Player(aged, plain, seed=seed), np.random.default_rng(seed)
    for n_steps in data.draw(st.lists(st.sampled_from([0, 1, 2, 11, 60]), min_size=3, max_size=6)):
        if n_steps == 0 and kind != "sequences":
            aged.reset(), plain.reset()
        player.add(n_steps)
        update((aged, plain), rng)
        factors = factors_of(plain, decay)
        np.testing.assert_allclose(aged.priorities, plain.masses * factors, rtol=1e-9)
        assert aged.max_priority == plain.max_priority
    if aged.priorities.any():
        assert_drawn_exactly(aged)


@pytest.mark.parametrize("scheme, n_envs", [("uniform", 3), ("pal", 1)])
def test_draws_by_age_alone_invert_the_distribution(scheme, n_envs, monkeypatch):
    """Each uniform number finds the transition at which the cumulative distribution, from the newest on, exceeds it."""
    buffer = make_buffer(20, n_envs, scheme=scheme, age_decay=2.5, stratified=False)
    fill([buffer], 50)
    uniforms = np.append(np.random.default_rng(0).random(3000), [0.0, 1.0 - 2.0**-53])
    monkeypatch.setattr(np.random, "random_sample", lambda n: uniforms)
    drawn = buffer.sample(len(uniforms)).indices
    order = drawable_ids(buffer)[::-1]
    masses = buffer.masses.ravel()[order % (20 * n_envs)]
    np.testing.assert_allclose(masses, factors_of(buffer, 2.5).ravel()[order % (20 * n_envs)])
    ends = np.cumsum(masses / masses.sum())
    expected = order[np.searchsorted(ends, uniforms, side="right").clip(max=len(order) - 1)]
    is_near = np.abs(ends[:, None] - uniforms).min(axis=0) < 1e-12  # rounding decides
    assert is_near.sum() <= 2
    np.testing.assert_array_equal(drawn[~is_near], expected[~is_near])


def test_weights_correct_for_priorities_and_not_for_age():
    """w = (P / A)^-beta, where A is the draw by age alone over the transitions that can be drawn."""
    buffer = filled_buffer("memory", age_decay=3.0, beta_start=0.7)
    ids = drawable_ids(buffer)
    slots = ids % buffer.masses.size
    p, by_age = buffer.masses.ravel()[slots], factors_of(buffer, 3.0).ravel()[slots]
    ratio = (p / p.sum()) / (by_age / by_age.sum())
    batch = buffer.sample(200)
    relative_probabilities = ratio[np.searchsorted(ids, batch.indices)]
    expected = relative_probabilities**-0.7
    np.testing.assert_allclose(batch.weights[:, 0], expected / expected.max(), rtol=1e-5)


def assert_draws_are_exact(buffer: Any, decay: float) -> None:
    """N P is the probability of the draw, over that of a draw by age alone."""
    ids = drawable_ids(buffer)
    slots = ids % buffer.masses.size
    masses, by_age = buffer.masses.ravel()[slots], factors_of(buffer, decay).ravel()[slots]
    expected = (masses / masses.sum()) / (by_age / by_age.sum())
    by_slot = dict(zip(slots.tolist(), expected, strict=True))
    drawn, relative_probabilities = buffer.draw_slots(40)
    np.testing.assert_allclose(relative_probabilities, [by_slot[slot] for slot in drawn.tolist()], rtol=1e-7)


@pytest.mark.parametrize(
    "kind, n_envs, scheme",
    [
        ("plain", 3, "lap"),
        ("actors", 3, "uniform"),
        ("memory", 2, "pal"),
        ("her", 2, "uniform"),
        ("sequences", 2, "proportional"),
    ],
)
def test_draws_are_exact_over_ten_capacities(kind, n_envs, scheme):
    """Every slot is taken by new transitions, again and again; the sum of the factors of age must follow."""
    changed: dict[str, Any] = dict(scheme=scheme, age_decay=3.0)
    if kind == "plain":
        changed["beta_anneal_steps"] = None
    if kind == "actors" and scheme in ("pal", "uniform"):
        changed["initial_priority"] = "max"
    buffer = make(kind, 12, n_envs, **changed)
    player, rng = Player(buffer), np.random.default_rng(0)
    for n_steps in (5, 9, 12, 1, 7, 14, 30, 2, 11, 40):
        player.add(n_steps)
        update((buffer,), rng)
        if (buffer.masses > 0).any():
            assert_draws_are_exact(buffer, 3.0)


def test_equal_priorities_have_weights_of_exactly_1():
    buffer = make("her", 16, age_decay=3.0, alpha=0.0)
    Player(buffer).add(200)
    np.testing.assert_array_equal(buffer.sample(64).weights.numpy(), 1.0)


@pytest.mark.parametrize("scheme", ["proportional", "uniform"])
def test_successive_draws_without_repeats_have_the_exact_probabilities(scheme):
    buffer = make_buffer(4, scheme=scheme, age_decay=2.0, unique=True, stratified=False)
    fill([buffer], 7)
    buffer.update_priorities(np.arange(3, 7), [1.0, 0.1, 3.0, 0.5])
    p = probabilities(buffer, drawable_ids(buffer))
    np.random.seed(1)
    n, counts = 2000, np.zeros((4, 4))
    for _ in range(n):
        first, second = buffer.sample(2).indices - 3
        counts[first, second] += 1
    chi_square = 0.0
    for i, j in itertools.permutations(range(4), 2):
        expected = n * p[i] * p[j] / (1 - p[i])
        chi_square += (counts[i, j] - expected) ** 2 / expected
    assert chi_square < 35.0  # 11 degrees of freedom: p = 0.0002
    assert counts.trace() == 0


@pytest.mark.parametrize("kind, scheme", [("plain", "uniform"), ("her", "proportional")])
def test_batches_without_repeats_hold_all_transitions_if_they_have_to(kind, scheme):
    buffer = filled_buffer(kind, age_decay=5.0, unique=True, scheme=scheme)
    ids = drawable_ids(buffer)
    np.testing.assert_array_equal(np.sort(buffer.sample(len(ids)).indices), ids)


def test_demonstrations_keep_their_share_and_have_no_age():
    """P(i) = (1 - s) P_experience(i) or s m_i / sum of m; weights divide by the same mixture with equal priorities."""
    buffer = make_buffer(10, 2, age_decay=3.0, demonstration_fraction=0.25, beta_start=0.6)
    other = make_buffer(8)
    fill([other], 8, seed=5)
    buffer.add_demonstrations_from(other)
    fill([buffer], 14)
    rng = np.random.default_rng(0)
    ids = np.concatenate((drawable_ids(buffer), 2**62 + np.arange(8)))
    errors = rng.exponential(size=28)
    buffer.update_priorities(ids, errors)
    masses, by_age = (errors + 1e-6) ** 0.6, np.append(np.exp(-3.0 * np.arange(19, -1, -1) / 20), np.ones(8))
    n = MANY - MANY // 4
    p, a = masses * by_age, by_age.copy()
    for part, share, share_of_all in ((slice(20), 0.75, 20 / 28), (slice(20, 28), 0.25, 8 / 28)):
        p[part] *= share / p[part].sum()
        a[part] *= share_of_all / a[part].sum()
    batch = buffer.sample(MANY)
    assert np.count_nonzero(batch.is_demonstration) == MANY - n
    assert (np.abs(counts_of(batch.indices, ids) - MANY * p) <= 3).all()
    at = np.searchsorted(ids, batch.indices)
    weights = (p / a)[at] ** -0.6
    np.testing.assert_allclose(batch.weights[:, 0], weights / weights.max(), rtol=1e-5)


def test_weights_of_demonstrations_stay_exact_over_ten_capacities():
    n_envs = 3
    buffer = make_buffer(10, n_envs, age_decay=3.0, demonstration_fraction=0.25, beta_start=0.6)
    other = make_buffer(8)
    fill([other], 8, seed=5)
    buffer.add_demonstrations_from(other)
    demonstrations, rng = 2**62 + np.arange(8), np.random.default_rng(0)
    of_demonstrations = rng.exponential(size=8)
    buffer.update_priorities(demonstrations, of_demonstrations)
    for lap in range(10):
        fill([buffer], 10, seed=lap)
        ids = drawable_ids(buffer)
        buffer.update_priorities(ids, rng.exponential(size=len(ids)))
        slots, n = ids % (10 * n_envs), len(ids) + 8
        by_age = factors_of(buffer, 3.0).ravel()[slots]
        masses = np.append(buffer.masses.ravel()[slots], (of_demonstrations + 1e-6) ** 0.6)
        # N P, where P is that of the mixture, and N P = 1 for all if all priorities and the sizes of both parts are equal
        relative_probabilities = np.empty(n)
        relative_probabilities[:-8] = 0.75 * n / len(ids) * (masses[:-8] / masses[:-8].sum()) / (by_age / by_age.sum())
        relative_probabilities[-8:] = 0.25 * n / 8 * (masses[-8:] / masses[-8:].mean())
        batch = buffer.sample(80)
        expected = relative_probabilities[np.searchsorted(np.append(ids, demonstrations), batch.indices)] ** -0.6
        np.testing.assert_allclose(batch.weights[:, 0] / batch.weights[0, 0], expected / expected[0], rtol=1e-4)


# ---- other buffers with the same transitions


@pytest.mark.parametrize("kind", ["her", "actors", "sequences"])
def test_saved_and_copied_buffers_draw_the_same(kind, tmp_path):
    buffer = make(kind, age_decay=3.0)
    Player(buffer, seed=1).play(120)
    Player(buffer, seed=2).play(1)
    save_buffer(buffer, tmp_path / "x.buffer")
    drawn = many_drawn(buffer)
    for other in (pickle.loads(pickle.dumps(buffer)), load_buffer(make(kind, age_decay=3.0), tmp_path / "x.buffer")):
        np.testing.assert_allclose(other.masses, buffer.masses, rtol=1e-12)
        if kind == "her":
            other.env = Goals()
        np.testing.assert_array_equal(many_drawn(other), drawn)
        Player(other, seed=3).play(40)


@pytest.mark.parametrize(
    "kind, decays",
    [("plain", (0.0, 3.0)), ("her", (3.0, 0.0)), ("actors", (3.0, 1.0)), ("sequences", (3.0, 1.0))],
)
def test_another_decay_keeps_the_priorities(kind, decays, tmp_path):
    """A directory, or ``from_replay_buffer``: only the factors of age change."""
    before, after = decays
    buffer = make(kind, age_decay=before)
    Player(buffer, seed=1).play(120)
    plain = buffer.masses / factors_of(buffer, before)
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = [load_buffer(make(kind, age_decay=after), tmp_path / "x.buffer")]
    if kind != "sequences":
        smaller = load_buffer(make(kind, 9, age_decay=after), tmp_path / "x.buffer")
        assert (smaller.priorities > 0).any()
    loaded.append(type(buffer).from_replay_buffer(buffer, age_decay=after))
    for other in loaded:
        np.testing.assert_allclose(other.masses, plain * factors_of(other, after), rtol=1e-9)
        assert_drawn_exactly(other)


# ---- edges


@pytest.mark.parametrize(
    "decay, scheme",
    [(1e-320, "uniform"), (1e5, "proportional"), (1e12, "uniform")],
)
def test_every_transition_can_be_drawn_at_any_decay(decay, scheme):
    buffer = make_buffer(50, 2, scheme=scheme, age_decay=decay)
    for step in range(15):
        fill([buffer], 7, seed=step)
        ids = buffer.sample(8).indices
        assert (ids >= 0).all()
        buffer.update_priorities(ids, np.arange(8.0))
    assert (buffer.masses > 0).all()
    assert np.isfinite(buffer.sample(8).weights.numpy()).all()


@pytest.mark.parametrize("mass", [1e-290, 1e290])
def test_masses_of_any_size_go_with_a_decay(mass):
    buffer, step = make_buffer(10, age_decay=3.0), [np.zeros((1, 1, *shape)) for shape in ((3,), (3,), (2,), (), ())]
    for i in range(400):
        buffer.extend(*step, [[{}]], masses=np.full((1, 1), mass if i > 200 else 1.0))
        buffer.sample(3)
    np.testing.assert_allclose(buffer.masses[:, 0], mass * factors_of(buffer, 3.0)[:, 0], rtol=1e-9)


class Flat(PriorityScheme):
    """Draw uniformly at all times."""

    def priority(self, abs_td_errors: np.ndarray) -> np.ndarray:
        return np.ones_like(abs_td_errors)


def test_a_scheme_of_your_own_may_decay():
    buffer = make_buffer(10, scheme=Flat(alpha=0.5), age_decay=1.0)
    fill([buffer], 13)
    buffer.update_priorities(np.arange(5, 13), np.ones(8))
    assert_drawn_exactly(buffer)


def test_a_decay_that_is_not_a_number_of_at_least_0_is_refused():
    for value in [-0.5, float("nan"), None]:
        with pytest.raises(ValueError, match=r"age_decay must be a number of at least 0, not .*" + str(value)[-1]):
            make_buffer(age_decay=value)


class OwnTree(Proportional):
    def make_tree(self, capacity):
        return SumTree(capacity)


def test_combinations_that_are_not_supported_are_refused():
    for changed, what in [
        (dict(scheme="rank"), "scheme=RankBased"),
        (dict(recency=0.99), "recency=0.99"),
        (dict(scheme=OwnTree()), r"make_tree\(\) of OwnTree"),
    ]:
        with pytest.raises(NotImplementedError, match=rf"age_decay=3.0 with {what}.* is not supported"):
            make_buffer(10**12, age_decay=3.0, **changed)


def _with_old_masses() -> PrioritizedReplayBuffer:
    """Make a buffer whose next draw writes all masses anew, relative to the age of newer transitions."""
    buffer = make_buffer(8, age_decay=40.0)
    fill([buffer], 8)
    buffer.update_priorities(np.arange(8), np.arange(1.0, 9.0))
    fill([buffer], 6)
    return buffer


def test_an_interrupt_while_masses_are_written_anew_changes_none():
    expected = _with_old_masses().masses
    n = interrupted(lambda: _with_old_masses().masses)
    for place in range(n):
        buffer = _with_old_masses()
        interrupted(lambda: buffer.masses, place)  # noqa: B023 - called at once
        np.testing.assert_allclose(buffer.masses, expected, rtol=1e-12)
