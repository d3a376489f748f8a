"""Minari datasets are imported without change."""

import copy
import itertools
import sys
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.policies import BasePolicy

from sb3_per import (
    PrioritizedDictReplayBuffer,
    PrioritizedHerReplayBuffer,
    PrioritizedReplayBuffer,
    from_minari,
)
from sb3_per.buffers.slots import keyed, read_slots, read_steps
from tests.helpers.buffers import ACTION_SPACES, OBSERVATION_SPACES, assert_same_state, batch_of, fill, make_buffer

minari = pytest.importorskip("minari")  # needs Python 3.11

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:minari")

BOX, IMAGE = OBSERVATION_SPACES["box"], spaces.Box(0, 255, (4, 5, 3), np.uint8)
DISCRETE = ACTION_SPACES["discrete"]
GOALS = {name: spaces.Box(-1, 1, (2,), np.float32) for name in ("observation", "achieved_goal", "desired_goal")}

# Scaling is exact only in the first range: the other ranges are not symmetric, and their sizes are no powers of 2.
ODD_ACTIONS = spaces.Box(np.float32([-2.0, 0.1, -7.3]), np.float32([2.0, 0.7, 11.9]), dtype=np.float32)

_numbers = itertools.count()


@pytest.fixture(autouse=True, scope="module")
def datasets_folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("minari")
        patch.setenv("MINARI_DATASETS_PATH", str(folder))
        yield folder


def new_id() -> str:
    return f"test/data{next(_numbers)}-v0"


def make(kind: str, n_rows: int, n_envs: int, action_space: spaces.Space = ACTION_SPACES["box"], **kwargs: Any) -> Any:
    """Return an empty buffer. ``kind`` is one of ``KINDS``."""
    common = {"device": "cpu", "n_envs": n_envs, **kwargs}
    if kind == "her":
        cls: Any = PrioritizedHerReplayBuffer
        return cls(n_rows * n_envs, spaces.Dict(GOALS), action_space, env=None, n_sampled_goal=0, **common)
    if kind == "optimized":
        common |= {"optimize_memory_usage": True, "handle_timeout_termination": False}
    if kind == "frames":
        common |= {"frames": 2}
    obs_space = OBSERVATION_SPACES[{"optimized": "box", "frames": "image"}.get(kind, kind)]
    cls = PrioritizedDictReplayBuffer if isinstance(obs_space, spaces.Dict) else PrioritizedReplayBuffer
    return cls(n_rows * n_envs, obs_space, action_space, **common)


KINDS = ["her", "optimized", "frames", *OBSERVATION_SPACES]


class Recorded(NamedTuple):
    """Steps as they were added. Each array has shape (n_steps, n_envs, ...)."""

    obs: Any
    next_obs: Any
    action: np.ndarray
    reward: np.ndarray
    done: np.ndarray
    timeout: np.ndarray


def play(buffer: ReplayBuffer, n_steps: int, seed: int = 0, p_end: float = 0.2, p_gap: float = 0.0) -> Recorded:
    """
    Add random steps, and return them.

    Each observation is the next observation of the step before, except after a gap and, as in environments, after an episode's
    end.

    :param p_end: probability that a step ends its episode
    :param p_gap: probability that a step is followed by a gap
    """
    rng = np.random.default_rng(seed)
    for space in (buffer.observation_space, buffer.action_space):
        space.seed(seed)
    n_envs = buffer.n_envs
    obs, steps = batch_of(buffer.observation_space, n_envs), []
    for _ in range(n_steps):
        next_obs, gap = batch_of(buffer.observation_space, n_envs), rng.random(n_envs) < p_gap
        if isinstance(buffer.action_space, spaces.Box):
            action = rng.uniform(-1, 1, (n_envs, *buffer.action_space.shape)).astype(np.float32)
        else:
            action = batch_of(buffer.action_space, n_envs)
        reward, done = rng.normal(size=n_envs).astype(np.float32), rng.random(n_envs) < p_end
        timeout = done & (rng.random(n_envs) < 0.5)
        infos = [{"TimeLimit.truncated": bool(t)} for t in timeout]
        steps.append(Recorded(obs, next_obs, action, reward, done, timeout))
        buffer.add(copy.copy(obs), copy.copy(next_obs), action, reward, done, infos)
        other = batch_of(buffer.observation_space, n_envs)
        obs = each(np.copy, next_obs)
        each(lambda a, b, jumps=gap | done: a.__setitem__(jumps, b[jumps]), obs, other)
    return Recorded(*(each(lambda *parts: np.stack(parts), *column) for column in zip(*steps, strict=True)))


def each(function: Any, *obs: Any) -> Any:
    """Call a function with arrays, or for each key with the arrays of dictionaries."""
    if isinstance(obs[0], dict):
        return {key: function(*(o[key] for o in obs)) for key in obs[0]}
    return function(*obs)


def at(obs: Any, index: Any) -> Any:
    return each(lambda array: array[index], obs)


def join(*obs: Any) -> Any:
    return each(lambda *parts: np.concatenate(parts), *obs)


def same(a: Any, b: Any) -> bool:
    return all(np.array_equal(a[key], b[key]) for key in a) if isinstance(a, dict) else np.array_equal(a, b)


def transitions_of(buffer: Any, env_idx: int) -> dict[str, Any]:
    """Return the stored transitions of one environment, oldest first, as arrays of shape (n, ...)."""
    ids = buffer.transition_ids[:, env_idx]
    rows = np.array([row for row in np.argsort(ids) if ids[row] >= 0], dtype=np.int64)
    if buffer.optimize_memory_usage and buffer.full:  # the oldest row has no observation any more
        rows = rows[1:]
    slots = rows * buffer.n_envs + env_idx
    obs, next_obs = read_slots(buffer.observations, slots), read_steps(buffer, slots, n_steps=1).next_observations
    parts = {"reward": buffer.rewards[rows, env_idx], "action": buffer.actions[rows, env_idx]}
    for name, o in (("obs", obs), ("next_obs", next_obs)):
        parts |= {f"{name} {key}": array for key, array in (o if isinstance(o, dict) else {"": o}).items()}
    dones, timeouts = buffer.dones[rows, env_idx], buffer.timeouts[rows, env_idx]
    return {**parts, "terminal": dones * (1 - timeouts), "last": dones}


def assert_same_transitions(buffer: Any, source: Any, atol_of_actions: float = 0.0) -> None:
    """Check that both buffers have the same transitions in the same order. Only actions may differ, by ``atol_of_actions``."""
    for env_idx in range(buffer.n_envs):
        actual, expected = transitions_of(buffer, env_idx), transitions_of(source, env_idx)
        for name in expected:
            atol = atol_of_actions if name == "action" else 0.0
            assert actual[name].dtype == expected[name].dtype
            np.testing.assert_allclose(actual[name], expected[name], rtol=0, atol=atol, err_msg=name)


def dataset_of(buffer: Any) -> Any:
    """Write the episodes of a buffer to a dataset, environment by environment. No step may follow a gap."""
    from minari.data_collector import EpisodeBuffer

    space, episodes = buffer.action_space, []
    for env_idx in range(buffer.n_envs):
        steps = transitions_of(buffer, env_idx)
        actions = steps["action"].reshape(-1, *space.shape)
        if isinstance(space, spaces.Box):
            actions = BasePolicy.unscale_action(SimpleNamespace(action_space=space), actions.astype(np.float64))
        is_last = steps["last"].astype(bool)
        is_last[-1:] = True
        for numbers in np.split(np.arange(len(is_last)), np.flatnonzero(is_last)[:-1] + 1):
            terminal = steps["terminal"][numbers].astype(bool)
            observations = {
                name.removeprefix("obs "): np.concatenate([steps[name][numbers], steps[f"next_{name}"][numbers[-1:]]])
                for name in steps
                if name.startswith("obs ")
            }
            episodes.append(
                EpisodeBuffer(
                    observations=observations.get("", observations),
                    actions=actions[numbers].astype(space.dtype),
                    rewards=steps["reward"][numbers],
                    terminations=terminal,
                    truncations=is_last[numbers] & ~terminal,
                )
            )
    spaces_ = dict(observation_space=buffer.observation_space, action_space=space)
    return minari.create_dataset_from_buffers(new_id(), episodes, jpeg_encoding=False, **spaces_)


# ---- whole buffers


def test_import_restores_all_transitions():
    """Transitions are equal to the bit, in the same order and environment. An episode that still runs becomes a truncation."""
    for kind in KINDS:
        for n_envs, n_steps in ((3, 23), (1, 7), (1, 10)) if kind in ("her", "optimized", "frames") else ((3, 23),):
            buffer, copied = make(kind, 10, n_envs), make(kind, 10, n_envs)
            play(buffer, n_steps, seed=n_steps)
            n_held = min(n_steps, 10) - (kind == "optimized" and n_steps >= 10)
            assert from_minari(dataset_of(buffer), copied) == n_held * n_envs
            buffer.end_episodes()
            if not buffer.handle_timeout_termination:  # a truncation is a termination there
                buffer.dones[buffer.pos - 1] = 1
            assert_same_transitions(copied, buffer)


def test_actions_of_all_kinds_are_restored_to_the_bit():
    for space in (
        *(ACTION_SPACES[name] for name in ("box64", "discrete", "multi_discrete")),
        spaces.Box(-2, 2, (2, 3)),
        spaces.MultiBinary(3),
    ):
        buffer, copied = (make("box", 10, 2, space) for _ in range(2))
        play(buffer, 14)
        assert from_minari(dataset_of(buffer), copied) == 20
        buffer.end_episodes()
        assert_same_transitions(copied, buffer)


def test_actions_are_scaled_as_sb3_scales_them():
    """An action of 32 bits is rounded once more when it is scaled: half an ulp of 1 is 2^-24."""
    buffer, copied = (make("box", 10, 2, ODD_ACTIONS) for _ in range(2))
    play(buffer, 10)
    dataset = dataset_of(buffer)
    from_minari(dataset, copied)
    actions = np.concatenate([episode.actions for episode in dataset])
    assert actions.dtype == np.float32 and (actions > 1).any()
    scaled = BasePolicy.scale_action(SimpleNamespace(action_space=ODD_ACTIONS), actions.astype(np.float64))
    np.testing.assert_allclose(
        np.concatenate([transitions_of(copied, i)["action"] for i in range(2)]), scaled, rtol=0, atol=2e-7
    )


def test_an_action_range_may_be_a_single_value():
    space = spaces.Box(np.float32([0.5, -1]), np.float32([0.5, 1]))
    buffer = make("box", 5, 1, space)
    dataset = make_dataset(buffer.observation_space, [(batch_of(BOX, 3), True)], space, np.float32([[0.5, -1], [0.5, 1]]))
    from_minari(dataset, buffer)
    np.testing.assert_array_equal(buffer.actions[:2, 0], [[0.0, -1.0], [0.0, 1.0]])


# ---- images


def images(n: int, shape: tuple[int, ...] = (36, 40, 3)) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (n, *shape), dtype=np.uint8)


def test_images_with_channels_last_are_transposed():
    """The images are large enough that Minari would save them as JPEG by default. No bit is lost."""
    outside, inside = (spaces.Box(0, 255, shape, np.uint8) for shape in ((36, 40, 3), (3, 36, 40)))
    in_dicts = [spaces.Dict({"image": space, "number": spaces.Discrete(9)}) for space in (outside, inside)]
    obs = images(6)
    transposed = obs.transpose(0, 3, 1, 2)
    in_dict, transposed_in_dict = ({"image": array, "number": np.arange(6)} for array in (obs, transposed))
    for cls, theirs, ours, raw, wanted in (
        (PrioritizedReplayBuffer, outside, inside, obs, transposed),
        (PrioritizedDictReplayBuffer, *in_dicts, in_dict, transposed_in_dict),
    ):
        buffer: Any = cls(5, ours, DISCRETE, device="cpu")
        assert from_minari(make_dataset(theirs, [(raw, True)]), buffer) == 5
        for stored, start in ((buffer.observations, 0), (buffer.next_observations, 1)):
            expected = at(wanted, slice(start, start + 5))
            assert same(each(lambda a, b: a.reshape(b.shape), stored, expected), expected)


def make_dataset(
    obs_space: spaces.Space,
    episodes: list[tuple[Any, bool | None]],
    action_space: spaces.Space = DISCRETE,
    actions: Any = None,
) -> Any:
    """
    Make a dataset. ``episodes`` are observations and their end: a termination (True), a truncation (False) or neither (None).
    """
    from minari.data_collector import EpisodeBuffer

    buffers, n_before = [], 0
    for obs, is_terminated in episodes:
        n = len(next(iter(obs.values())) if isinstance(obs, dict) else obs) - 1
        terminations, truncations = np.zeros((2, n), bool)
        terminations[-1:], truncations[-1:] = is_terminated is True, is_terminated is False
        acted = np.zeros(n, np.int64) if actions is None else actions[:n]
        rewards = np.arange(n_before, n_before + n, dtype=np.float64)
        buffers.append(
            EpisodeBuffer(
                observations=obs,
                actions=acted,
                rewards=rewards,
                terminations=terminations,
                truncations=truncations,
            )
        )
        n_before += n
    return minari.create_dataset_from_buffers(
        new_id(), buffers, observation_space=obs_space, action_space=action_space, jpeg_encoding=False
    )


# ---- import


@given(
    lengths=st.lists(st.tuples(st.integers(1, 9), st.sampled_from([True, False, None])), min_size=1, max_size=6),
    n_envs=st.integers(1, 4),
    kind=st.sampled_from(["box", "her"]),
)
@settings(max_examples=15)
def test_import_keeps_all_but_the_first_few_transitions(lengths, n_envs, kind):
    """
    Environments get equally many transitions, so fewer than ``n_envs`` of the first ones are left out.

    The order stays, and only terminations are terminal. Each environment ends with the end of an episode, and no other episode
    is cut.
    """
    n_total = sum(length for length, _ in lengths)
    n_steps, n_left_out = divmod(n_total, n_envs)
    buffer = make(kind, max(n_steps, 1) + 1, n_envs, DISCRETE)
    space, rng = buffer.observation_space, np.random.default_rng(0)
    space.seed(0)
    episodes = []
    for length, is_terminated in lengths:
        obs = [space.sample() for _ in range(length + 1)]
        episodes.append((each(lambda *parts: np.stack(parts), *obs), is_terminated))
    dataset = make_dataset(space, episodes, actions=rng.integers(0, 3, 9))
    if n_steps == 0:
        with pytest.raises(ValueError, match=f"{n_total} transitions"):
            from_minari(dataset, buffer)
        return
    assert from_minari(dataset, buffer) == n_steps * n_envs

    parts = [transitions_of(buffer, env_idx) for env_idx in range(n_envs)]
    together = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    np.testing.assert_array_equal(together["reward"], np.arange(n_left_out, n_total))
    np.testing.assert_array_equal(together["action"].ravel(), np.concatenate([e.actions for e in dataset])[n_left_out:])
    for name, kept in (("obs", slice(None, -1)), ("next_obs", slice(1, None))):
        expected = at(join(*(at(obs, kept) for obs, _ in episodes)), slice(n_left_out, None))
        for key, array in (expected if kind == "her" else {"": expected}).items():
            np.testing.assert_array_equal(together[f"{name} {key}"], array)
    terminal = np.concatenate([[False] * (length - 1) + [is_terminated is True] for length, is_terminated in lengths])
    np.testing.assert_array_equal(together["terminal"], terminal[n_left_out:])
    last = np.concatenate([[False] * (length - 1) + [True] for length, _ in lengths])[n_left_out:].reshape(n_envs, n_steps)
    last[:, -1] = True
    np.testing.assert_array_equal(together["last"], last.ravel())
    if kind == "her":
        assert (buffer.ep_length > 0).sum() == n_steps * n_envs


def chain(*ends: bool | None, length: int = 4) -> Any:
    """Make a dataset of episodes of this length. Observations in episode i count up from 100 * i."""
    space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    episodes = [(np.arange(length + 1, dtype=np.float32)[:, None] + 100 * i, end) for i, end in enumerate(ends)]
    return make_dataset(space, episodes), space


def test_truncations_bootstrap_and_terminations_do_not():
    """Check the values that a critic reads, with n-step windows, which never cross the border between two episodes."""
    dataset, space = chain(True, False, None)
    buffer = PrioritizedReplayBuffer(30, space, DISCRETE, device="cpu", n_steps=3, gamma=1.0)
    from_minari(dataset, buffer)
    samples = buffer.sample(400)
    obs, next_obs = (tensor.numpy().ravel() for tensor in (samples.observations, samples.next_observations))
    np.testing.assert_array_equal(next_obs, np.minimum(obs + 3, obs // 100 * 100 + 4))
    np.testing.assert_array_equal(samples.dones.numpy().ravel(), next_obs == 4)
    assert (next_obs == 104).any() and (next_obs == 204).any()


def test_import_does_not_continue_episodes_of_the_buffer():
    """No n-step window crosses from the buffer's own steps to imported ones, or back."""
    n_envs = 2
    dataset, space = chain(False, None, length=5)
    buffer = PrioritizedReplayBuffer(60, space, DISCRETE, device="cpu", n_envs=n_envs, n_steps=4, gamma=1.0)

    def run(start: int) -> None:
        for t in range(start, start + 6):
            obs = np.full((n_envs, 1), t)
            buffer.add(obs, obs + 1, np.zeros((n_envs, 1)), np.zeros(n_envs), np.zeros(n_envs), [{}] * n_envs)

    run(1000)
    from_minari(dataset, buffer)
    run(2000)
    samples = buffer.sample(600)
    obs, next_obs = (tensor.numpy().ravel() for tensor in (samples.observations, samples.next_observations))
    last = np.select([obs < 100, obs < 200, obs < 2000], [5, 105, 1006], 2006)
    np.testing.assert_array_equal(next_obs, np.minimum(obs + 4, last))
    assert not samples.dones.numpy().any()
    assert len(np.unique(obs)) == 6 + 10 + 6


def test_import_does_not_continue_episodes_of_a_her_buffer():
    source, buffer = make("her", 20, 2), make("her", 40, 2)
    play(source, 9, p_end=0.1)
    play(buffer, 3, p_end=0.0)
    assert from_minari(dataset_of(source), buffer) == 18
    assert (buffer.ep_length[:3] == 3).all() and (buffer.ep_length[3:12] > 0).all()
    play(buffer, 4, p_end=0.0)
    assert (buffer.ep_start[12:16] == 12).all() and (buffer.ep_length[12:] == 0).all()


def test_imported_stacks_share_their_frames():
    """Frame stacks from a dataset take as little RAM as those from an environment."""
    space = spaces.Box(0, 255, (4, 6, 6), np.uint8)
    buffer, copied = (PrioritizedReplayBuffer(60, space, DISCRETE, device="cpu", n_envs=2, frames=4) for _ in range(2))
    frames = images(49, (2, 6, 6))
    for t in range(45):
        obs, next_obs = (frames[start : start + 4].swapaxes(0, 1) for start in (t, t + 1))
        buffer.add(obs, next_obs, np.zeros((2, 1)), np.zeros(2), np.full(2, t == 40), [{}, {}])
    from_minari(dataset_of(buffer), copied)
    buffer.end_episodes()
    assert_same_transitions(copied, buffer)
    assert copied.frames_per_transition == buffer.frames_per_transition < 1.2


def test_a_filtered_dataset_can_be_imported():
    dataset, space = chain(True, False, True)
    buffer = PrioritizedReplayBuffer(30, space, DISCRETE, device="cpu")
    assert from_minari(dataset.filter_episodes(lambda episode: bool(episode.terminations[-1])), buffer) == 8
    assert buffer.observations[:8].ravel().tolist() == [0, 1, 2, 3, 200, 201, 202, 203]


def test_a_dataset_can_be_imported_by_its_id():
    dataset, space = chain(True)
    buffer = PrioritizedReplayBuffer(30, space, DISCRETE, device="cpu")
    assert from_minari(dataset.id, buffer) == 4
    with pytest.raises(FileNotFoundError, match="test/nothing-v0"):
        from_minari("test/nothing-v0", buffer)


# ---- what is refused


OTHER_OBSERVATIONS: list[tuple[spaces.Space, spaces.Space]] = [
    (BOX, spaces.Box(-1, 1, (4,))),
    (BOX, spaces.Box(-1, 2, (3,))),
    (IMAGE, spaces.Box(0, 255, (3, 5, 4), np.uint8)),
    (IMAGE, spaces.Box(0, 1, (3, 4, 5), np.uint8)),
    (spaces.Dict({"a": BOX, "b": BOX}), spaces.Dict({"a": BOX})),
    (spaces.Dict({"a": BOX}), spaces.Dict({"a": BOX, "b": BOX})),
    (spaces.Dict({"a": BOX}), BOX),
    (BOX, spaces.Dict({"a": BOX})),
]


def test_other_spaces_are_refused():
    for theirs, ours in OTHER_OBSERVATIONS:
        dataset = make_dataset(theirs, [(each(np.asarray, batch_of(theirs, 3)), True)])
        cls = PrioritizedDictReplayBuffer if isinstance(ours, spaces.Dict) else PrioritizedReplayBuffer
        assert_refused(dataset, cls(10, ours, DISCRETE, device="cpu"), ValueError, theirs, ours)
    for theirs, ours in (
        (spaces.Discrete(3), spaces.Discrete(4)),
        (ODD_ACTIONS, spaces.Box(-1, 1, (4,))),
    ):
        dataset = make_dataset(BOX, [(batch_of(BOX, 3), True)], theirs, batch_of(theirs, 2))
        assert_refused(dataset, PrioritizedReplayBuffer(10, BOX, ours, device="cpu"), ValueError, theirs, ours)
    for space in (spaces.Box(-np.inf, 1, (2,)), spaces.Box(0, 5, (2,), np.int64)):
        dataset = make_dataset(BOX, [(batch_of(BOX, 3), True)], space, batch_of(space, 2))
        buffer = PrioritizedReplayBuffer(10, BOX, space, device="cpu")
        assert_refused(dataset, buffer, ValueError, "finite bounds")


def test_a_dataset_larger_than_the_buffer_or_empty_is_refused():
    dataset = make_dataset(BOX, [(batch_of(BOX, 25), True)])  # 24 transitions, of which 5 environments take 20
    for kind, n_rows, n_envs, n_taken in (
        ("box", 24, 1, 24),
        ("box", 23, 1, None),
        ("optimized", 25, 1, 24),
        ("optimized", 24, 1, None),
        ("box", 4, 5, 20),
        ("box", 3, 5, None),
    ):
        buffer = make(kind, n_rows, n_envs, DISCRETE)
        if n_taken is None:
            assert_refused(dataset, buffer, ValueError, "24 transitions")
        else:
            assert from_minari(dataset, buffer) == n_taken
    assert_refused(make_dataset(BOX, []), make("box", 5, 1, DISCRETE), ValueError, "0 transitions")


def test_stock_buffers_are_refused():
    dataset, buffer = make_dataset(BOX, [(batch_of(BOX, 3), True)]), ReplayBuffer(10, BOX, DISCRETE, device="cpu")
    with pytest.raises(TypeError, match="from_replay_buffer"):
        from_minari(dataset, buffer)


def assert_refused(dataset: Any, buffer: Any, error: type[Exception], *named: Any) -> None:
    """Check that the error names these values, and that the buffer does not change, also in the middle of an episode."""
    if buffer.action_space == DISCRETE:
        play(buffer, 2, p_end=0.0)
    before = copy.deepcopy(buffer)
    with pytest.raises(error) as caught:
        from_minari(dataset, buffer)
    for name in named:
        assert str(name) in str(caught.value)
    assert_same_state(buffer, before)


def test_without_minari_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(ImportError, match='pip install "minari'):
        from_minari("a-v0", make_buffer())


# ---- demonstrations


@pytest.mark.parametrize("kind", ["frames", "her"])
def test_all_transitions_of_a_dataset_become_demonstrations(kind):
    """The size of the buffer and its number of environments do not matter. The stored steps equal those of the source."""
    source = make(kind, 12, 1)
    fill([source], 12)
    source.end_episodes()
    dataset = dataset_of(source)
    copied = make(kind, 1, 3, demonstration_fraction=1.0)
    assert from_minari(dataset, copied, demonstrations=True) == len(copied.demonstrations) == 12
    assert copied.size() == 0
    kept = copied.demonstrations.buffer
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts"):
        for one, other in zip(*(keyed(getattr(each, name)).values() for each in (source, kept)), strict=True):
            np.testing.assert_array_equal(other[:12], one[:12])


def test_demonstrations_with_actions_outside_of_their_space_are_refused():
    space = spaces.Box(-2, 2, (2,), np.float32)
    dataset = make_dataset(BOX, [(batch_of(BOX, 3), True)], space, np.array([[0.0, 2.0], [0.0, 2.5]], np.float32))
    buffer = PrioritizedReplayBuffer(10, BOX, space, device="cpu", demonstration_fraction=0.5)
    with pytest.raises(ValueError, match=r"Action 1 of 2 .* is \[0\.  2\.5\], outside of the action space Box\(-2"):
        from_minari(dataset, buffer, demonstrations=True)
    assert len(buffer.demonstrations) == 0


def test_actions_of_a_dataset_with_other_bounds_are_scaled_to_the_bounds_of_the_buffer():
    wide, narrow = spaces.Box(-4, 4, (2,), np.float32), spaces.Box(-1, 3, (2,), np.float32)
    raw = np.array([[0.0, 2.0], [-1.0, 3.0], [1.0, 1.5]], np.float32)
    outside = raw.copy()
    outside[2, 1] = -1.5
    fitting, bad = (make_dataset(BOX, [(batch_of(BOX, 4), True)], wide, actions) for actions in (raw, outside))
    for demonstrations in (True, False):
        buffer = PrioritizedReplayBuffer(10, BOX, narrow, device="cpu", demonstration_fraction=0.5)
        assert from_minari(fitting, buffer, demonstrations) == 3
        stored = buffer.demonstrations.buffer.actions[:3, 0] if demonstrations else buffer.actions[:3, 0]
        np.testing.assert_allclose(stored, (raw - 1) / 2)
        with pytest.raises(ValueError, match=r"Action 2 of 3 .* is \[ 1\.  -1\.5\], outside of the action space Box\(-1"):
            from_minari(bad, buffer, demonstrations)
        assert len(buffer.demonstrations) + buffer.size() == 3


def test_an_empty_dataset_is_refused_as_demonstrations():
    source = make("box", 12, 1)
    fill([source], 12)
    empty = dataset_of(source).filter_episodes(lambda episode: False)
    with pytest.raises(ValueError, match="0 transitions"):
        from_minari(empty, make("box", 5, 1), demonstrations=True)
