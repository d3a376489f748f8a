"""Buffers on disk: what is loaded is what was saved, and goes on as it would have."""

import copy
import os
import pickle
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per import PERDQN, PERSAC, PERTD3, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer, RankBased
from sb3_per.persistence.buffer_files import load_buffer, save_buffer
from sb3_per.persistence.generations import Directory, Manifest
from tests.test_frames import ACTIONS, Stream, shape_of
from tests.test_her import Player, make_env, make_her
from tests.utils import ACTION_SPACES, OBSERVATION_SPACES, fill, make_buffer

SCHEMES = ["proportional", "rank", "lap", "pal", "uniform"]


def parts(name: str, obs: Any) -> dict[str, Any]:
    return {f"{name}.{key}": part for key, part in obs.items()} if isinstance(obs, dict) else {name: obs}


def held(buffer: PrioritizedReplayBuffer) -> dict[str, Any]:
    """All that a buffer holds, the oldest step first, read from SB3's own arrays."""
    n = buffer.size()
    order = (np.arange(n) + (buffer.pos if buffer.full else 0)) % buffer.buffer_size
    arrays = {**parts("obs", buffer.observations), "actions": buffer.actions, "rewards": buffer.rewards}
    arrays.update(dones=buffer.dones, timeouts=buffer.timeouts, ids=buffer.transition_ids)
    if not buffer.optimize_memory_usage:
        arrays.update(parts("next_obs", buffer.next_observations))
    if isinstance(buffer, PrioritizedHerReplayBuffer):
        arrays.update(ep_start=buffer.ep_start, ep_length=buffer.ep_length, infos=buffer.infos)
    state = {name: array[:][order] for name, array in arrays.items()}
    if buffer.optimize_memory_usage:
        state["newest"] = buffer.observations[buffer.pos]
    if isinstance(buffer, PrioritizedHerReplayBuffer):
        state["current"] = buffer._current_ep_start
    state["masses"] = buffer._tree[:].reshape(buffer.buffer_size, buffer.n_envs)[order]
    if hasattr(buffer._tree, "ranked"):
        state["ranks"], state["ranked priorities"] = buffer._tree.ranked()
    names = "pos full max_priority beta _n_added _n_before_ring _n_admitted _n_updates _n_sampled _next_kappa"
    state.update({name: getattr(buffer, name) for name in names.split()})
    state["scheme"] = repr(buffer.scheme), getattr(buffer.scheme, "kappa", None)
    return state


def as_dicts(value: Any) -> Any:
    """Without the order that an OrderedDict insists on."""
    if isinstance(value, dict):
        return {key: as_dicts(part) for key, part in value.items()}
    return [as_dicts(part) for part in value] if isinstance(value, list) else value


def assert_same(actual: dict[str, Any], expected: dict[str, Any]) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        if name == "infos":  # dictionaries with arrays in them
            assert repr(as_dicts(actual[name].tolist())) == repr(as_dicts(value.tolist()))
            continue
        np.testing.assert_array_equal(actual[name], value, err_msg=name)
        if isinstance(value, np.ndarray):
            assert actual[name].dtype == value.dtype, name


def draws(buffer: PrioritizedReplayBuffer, n: int = 20) -> np.ndarray:
    """Ids, weights and rewards of the next draws, with a seed of their own, each followed by an update."""
    np.random.seed(5)
    drawn = []
    for _ in range(n):
        batch = buffer.sample(min(buffer._n_drawable, 8))
        drawn.append([batch.indices, batch.weights.numpy()[:, 0], batch.rewards.numpy()[:, 0]])
        buffer.update_priorities(batch.indices, np.random.standard_normal(len(batch.indices)))
    return np.array(drawn)


def emptied(buffer: PrioritizedReplayBuffer, **changed: Any) -> PrioritizedReplayBuffer:
    """A new buffer of the same settings, as a new process would make it."""
    twin = copy.deepcopy(buffer)
    if hasattr(buffer, "env"):
        twin.env = buffer.env
    twin.reset()
    twin._n_added = twin._n_before_ring = twin._n_admitted = 0
    twin.max_priority, twin.beta, twin._n_updates, twin._n_sampled = 1.0, twin.beta_start, 0, 0
    return twin


def assert_round_trip(buffer: PrioritizedReplayBuffer, path: Path, **kwargs: Any) -> PrioritizedReplayBuffer:
    """Saved and loaded it is the same, saving changes nothing, and so are the next draws; returns the loaded one."""
    before = held(buffer)
    save_buffer(buffer, path, **kwargs)
    assert_same(held(buffer), before)
    loaded = load_buffer(emptied(buffer), path)
    assert_same(held(loaded), before)
    if buffer._n_drawable:
        np.testing.assert_array_equal(draws(loaded), draws(buffer))
        assert_same(held(loaded), held(buffer))
    return loaded


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_round_trip(scheme, n_envs, n_steps, tmp_path):
    """Through laps, in increments; the loaded one is saved and loaded in its turn, and adds to the same directory."""
    buffer = make_buffer(24, n_envs, scheme=scheme, n_steps=n_steps)
    for i, n in enumerate([1, 7, 30, 0, 100, 24, 3]):
        fill([buffer], n, seed=i)
        loaded = assert_round_trip(buffer, tmp_path / "x.buffer", num_timesteps=i)
        fill([buffer, loaded], 5, seed=50 + i)
        assert_same(held(loaded), held(buffer))
        buffer = loaded


@pytest.mark.parametrize("obs_space", OBSERVATION_SPACES)
@pytest.mark.parametrize("action_space", ["box64", "multi_discrete"])
def test_spaces(obs_space, action_space, tmp_path):
    buffer = make_buffer(20, 2, obs_space, action_space)
    for n in (13, 20):
        fill([buffer], n, seed=n)
        assert_round_trip(buffer, tmp_path / "x.buffer")


SETTINGS = {
    "optimize_memory_usage": dict(optimize_memory_usage=True, handle_timeout_termination=False),
    "no timeouts": dict(handle_timeout_termination=False),
    "kappa auto": dict(scheme="lap", kappa="auto", max_priority_interval=3),
    "mean priority of new ones": dict(initial_priority="mean"),
    "errors of new ones": dict(initial_priority="td_error"),
    "beta by draws": dict(beta_anneal_steps=100),
    "unique and uniform": dict(unique=True, uniform_fraction=0.3, recency=0.9, recency_min=9),
}


@pytest.mark.parametrize("setting", SETTINGS)
def test_settings_with_a_state_of_their_own(setting, tmp_path):
    """Also where transitions have come that nobody has asked for yet, whose priorities are decided when somebody does."""
    buffer = make_buffer(20, 2, **SETTINGS[setting])
    for i, n in enumerate([3, 9, 30, 7]):
        fill([buffer], n, seed=i)
        if setting == "errors of new ones":
            space, action_space = buffer.observation_space, buffer.action_space
            obs = np.stack([space.sample(), space.sample()])
            actions = np.stack([action_space.sample(), action_space.sample()])
            buffer.add(obs, obs, actions, np.zeros(2), np.zeros(2), [{}, {}], td_errors=np.array([0.3, 7.0]))
        assert_round_trip(buffer, tmp_path / "x.buffer")


@pytest.mark.parametrize("scheme", ["proportional", "rank"])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("copy_info_dict", [False, True])
def test_hindsight(copy_info_dict, n_envs, scheme, tmp_path):
    """With episodes that are under way, finished but not asked for, and half overwritten."""
    env = make_env(n_envs)
    buffer = make_her(PrioritizedHerReplayBuffer, env, scheme=scheme, copy_info_dict=copy_info_dict)
    player = Player(env, buffer)
    for n in (3, 4, 9, 1, 30, 2):
        player.step(n)
        loaded = assert_round_trip(buffer, tmp_path / "x.buffer")
        player.buffers = (buffer, loaded)
        player.step(3)
        assert_same(held(loaded), held(buffer))
        player.buffers = (buffer := loaded,)


@pytest.mark.parametrize("form", ["channels first", "channels last"])
def test_frames(form, tmp_path):
    """In increments through laps, with a pool in several pieces; afterwards as a buffer without frames, and back."""
    space = spaces.Box(0, 255, shape_of(form, 4), np.uint8)
    make = lambda **kwargs: PrioritizedReplayBuffer(60, space, ACTIONS, "cpu", 2, **kwargs)  # noqa: E731
    buffer, plain, stream = make(frames=4), make(), Stream(form, 4, np.uint8, 2, 0)
    for n in (1, 8, 40, 0, 95):
        for _ in range(n):
            obs, next_obs, dones, step_infos = stream.step()
            for each in (buffer, plain):
                each.add(obs, next_obs, np.zeros((2, 1)), np.ones(2), dones, step_infos)
        loaded = assert_round_trip(buffer, tmp_path / "x.buffer")
        np.testing.assert_array_equal(held(loaded)["obs"], held(plain)["obs"])
        np.testing.assert_array_equal(held(loaded)["next_obs"], held(plain)["next_obs"])
        # The pool goes on where it was: a stream that continues costs one frame a step.
        assert loaded._frame_stores()[0].numbers == buffer._frame_stores()[0].numbers
        unframed = load_buffer(make(), tmp_path / "x.buffer")
        assert unframed.frames is None
        np.testing.assert_array_equal(held(unframed)["next_obs"], held(plain)["next_obs"])
        save_buffer(unframed, tmp_path / f"plain{n}.buffer")
        framed = load_buffer(make(frames=2), tmp_path / f"plain{n}.buffer")
        np.testing.assert_array_equal(held(framed)["obs"], held(plain)["obs"])
        buffer = loaded


def test_dictionaries_with_frames(tmp_path):
    """Keys of any name, some in frames, each with a pool of its own."""
    image = spaces.Box(0, 255, shape_of("channels first", 4), np.uint8)
    space = spaces.Dict({"a/../b": image, "ü": image, "vector": spaces.Box(-9, 9, (3,))})
    from sb3_per import PrioritizedDictReplayBuffer

    buffer = PrioritizedDictReplayBuffer(40, space, ACTIONS, "cpu", 2, frames={"a/../b": 4, "ü": 2})
    streams = [Stream("channels first", 4, np.uint8, 2, seed) for seed in (0, 1)]
    for n in (5, 17, 30):
        for _ in range(n):
            (obs, next_obs, dones, step_infos), other = streams[0].step(), streams[1].step()
            vectors = np.random.default_rng(n).normal(size=(2, 2, 3)).astype(np.float32)
            both = ({"a/../b": a, "ü": b, "vector": c} for a, b, c in zip((obs, next_obs), other[:2], vectors, strict=True))
            buffer.add(*both, np.zeros((2, 1)), np.zeros(2), dones, step_infos)
        assert_round_trip(buffer, tmp_path / "x.buffer")


STEPS = st.lists(
    st.one_of(st.integers(0, 30), st.sampled_from(["reset", "save", "full", "load", "update", "fresh"])), max_size=14
)


@settings(max_examples=40, deadline=None)
@given(script=STEPS, scheme=st.sampled_from(["proportional", "rank"]), n_envs=st.sampled_from([1, 2]), keep=st.integers(1, 3))
def test_increments_are_a_full_save(script, scheme, n_envs, keep, tmp_path_factory):
    """Any chain of saves, resets, laps and loads, in two directories in turn, against one save of all at the end."""
    folder = tmp_path_factory.mktemp("chain")
    buffer = make_buffer(10, n_envs, scheme=scheme)
    for i, action in enumerate(script):
        path = folder / f"{'ab'[i % 2]}.buffer"
        if action == "reset":
            buffer.reset()
        elif action == "update" and buffer._n_drawable:
            batch = buffer.sample(5)
            buffer.update_priorities(batch.indices, np.arange(5.0))
        elif action in ("save", "full"):
            save_buffer(buffer, path, i, full=action == "full", keep=keep)
            assert_same(held(load_buffer(emptied(buffer), path)), held(buffer))
            assert len(Directory(path).manifests()) <= keep
        elif action == "load" and path.exists():
            buffer = load_buffer(buffer, path)
        elif action == "fresh":
            buffer = pickle.loads(pickle.dumps(buffer))  # another object, which goes its own way in the same directories
        elif isinstance(action, int):
            fill([buffer], action, seed=i)
    for path, full in ((folder / "a.buffer", False), (folder / "c.buffer", True)):
        save_buffer(buffer, path, full=full)
        assert_same(held(load_buffer(emptied(buffer), path)), held(buffer))


def n_bytes(path: Path) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(path))


def test_a_save_writes_what_is_new(tmp_path):
    """Rows once, in few files, however often it is saved; nothing of other sizes than what is held."""
    buffer = make_buffer(2_000, 1, "box64")
    path, written = tmp_path / "x.buffer", []
    fill([buffer], 1_000)
    save_buffer(buffer, path)
    for i in range(100):
        fill([buffer], 20, seed=i)
        before = {entry.name for entry in os.scandir(path) if entry.name.startswith("seg")}
        save_buffer(buffer, path, keep=1)
        new = [entry for entry in os.scandir(path) if entry.name.startswith("seg") and entry.name not in before]
        written.append(sum(entry.stat().st_size for entry in new))
    step = sum(array[:1].nbytes for array in buffer._rows().values())
    rows = [entry for entry in os.scandir(path) if entry.name.startswith("seg")]
    assert len(rows) <= 12
    # Every step is joined with others about log2(100) times.
    assert sum(written) < 100 * 20 * step * 8 + 100 * 100 * 10
    assert n_bytes(path) < 1.5 * 2_000 * (step + 24)
    save_buffer(buffer, path)
    assert {entry.name for entry in rows} == {entry.name for entry in os.scandir(path) if entry.name.startswith("seg")}


def test_one_percent_full_is_one_percent_on_disk(tmp_path):
    buffer = make_buffer(200_000, 1)
    fill([buffer], 2_000)
    save_buffer(buffer, tmp_path / "x.buffer")
    assert n_bytes(tmp_path / "x.buffer") < 0.012 * len(pickle.dumps(buffer))


def test_numpy_alone_can_read_it(tmp_path):
    """As the page on long runs says: the files are npz, and steps are in their order."""
    import json

    buffer = make_buffer(50, 2, "dict")
    fill([buffer], 70)
    fill([buffer], 9)
    path = tmp_path / "x.buffer"
    save_buffer(buffer, path, 140)
    fill([buffer], 5)
    save_buffer(buffer, path, 150)
    newest = sorted(path.glob("gen-*.json"))[-1]
    manifest = json.loads(newest.read_text())
    rows = [part for part in manifest["parts"] if part["stream"] == "rows"]
    vectors = np.concatenate([np.load(path / part["name"], allow_pickle=False)["observations.vec"] for part in rows])
    (state,) = (part for part in manifest["parts"] if part["stream"] == "state")
    vectors = vectors[state["first"] - rows[0]["first"] :]
    np.testing.assert_array_equal(vectors, held(buffer)["obs.vec"])
    small = np.load(path / state["name"], allow_pickle=False)
    np.testing.assert_array_equal(small["rewards"], held(buffer)["rewards"])
    np.testing.assert_array_equal(small["masses"], held(buffer)["masses"])


# ---- into a buffer that is not the same


@pytest.mark.parametrize("scheme", ["proportional", "rank"])
@pytest.mark.parametrize("n_rows", [7, 23, 24, 50])
@pytest.mark.parametrize("n_saved", [5, 24, 60])
@pytest.mark.parametrize("optimize", [False, True])
def test_another_size(optimize, n_saved, n_rows, scheme, tmp_path):
    """The newest rows that fit, with their masses; nobody can mistake an old id for a new one; and it goes on."""
    kwargs = dict(optimize_memory_usage=optimize, handle_timeout_termination=not optimize, scheme=scheme)
    buffer = make_buffer(24, 2, **kwargs)
    fill([buffer], n_saved)
    ids = np.arange(max(0, n_saved - 24 + optimize) * 2, n_saved * 2)
    buffer.update_priorities(ids, np.random.default_rng(0).permutation(len(ids)) + 1.0)
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make_buffer(n_rows, 2, **kwargs), tmp_path / "x.buffer")
    n = min(n_saved, 24 - (optimize and n_saved >= 24 and n_rows > 24), n_rows)
    assert loaded.size() == n
    expected, actual = held(buffer), held(loaded)
    # Where the next observation of the newest lies over it, the oldest observation is another.
    lost = int(optimize and n == n_rows)
    for name in ("obs", "actions", "rewards", "dones"):
        np.testing.assert_array_equal(actual[name][lost:], expected[name][-n:][lost:])
    if optimize:
        np.testing.assert_array_equal(actual["newest"], expected["newest"])
    if n_rows != 24:
        assert loaded.transition_ids[loaded.transition_ids >= 0].min() >= buffer._next_id
    if scheme == "proportional":
        loaded._settle()
        drawable = actual["masses"][lost:]
        np.testing.assert_array_equal(drawable, expected["masses"][-n:][lost:])
    else:
        order = np.argsort(-expected["ranked priorities"][np.argsort(expected["ranks"])], kind="stable")
        assert len(order)
        np.testing.assert_array_equal(np.diff(actual["ranked priorities"]) <= 0, True)
    fill([loaded], 60, seed=3)
    draws(loaded)


@pytest.mark.parametrize("n_rows", [6, 11, 16, 40])
def test_hindsight_of_another_size(n_rows, tmp_path):
    """Episodes come along as a whole or cannot be drawn; goals are of their own episode; and it goes on."""
    env = make_env(2)
    buffer = make_her(PrioritizedHerReplayBuffer, env)
    player = Player(env, buffer)
    player.step(40)
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(make_her(PrioritizedHerReplayBuffer, env, n_rows=n_rows), tmp_path / "x.buffer")
    n = loaded.size()
    expected, actual = held(buffer), held(loaded)
    rows = (np.arange(n) + (loaded.pos if loaded.full else 0)) % n_rows
    saved_rows = ((np.arange(17) + buffer.pos) % 17)[-n:]
    for env_idx in range(2):
        for i in range(n):
            length = actual["ep_length"][i, env_idx]
            offset = (rows[i] - actual["ep_start"][i, env_idx]) % n_rows
            assert length in (0, expected["ep_length"][-n:][i, env_idx])
            assert length == 0 or offset < length
            since_start = (saved_rows[i] - expected["ep_start"][-n:][i, env_idx]) % 17
            is_whole = i >= since_start and expected["ep_length"][-n:][i, env_idx] > 0
            assert (length > 0) == is_whole
    np.testing.assert_array_equal(loaded.priorities > 0, loaded.ep_length > 0)
    player.buffers = (loaded,)
    player.step(60)
    draws(loaded)


def test_another_scheme(tmp_path):
    """All at the largest priority, with a warning; also another exponent. The other way round as well."""
    buffer = make_buffer(20, 2, scheme="proportional")
    fill([buffer], 15)
    buffer.update_priorities(np.arange(30), np.arange(30.0))
    save_buffer(buffer, tmp_path / "x.buffer")
    for kwargs in (dict(scheme="rank"), dict(alpha=0.3), dict(scheme="uniform")):
        with pytest.warns(UserWarning, match=re.escape("Proportional(alpha=0.6")):
            loaded = load_buffer(make_buffer(20, 2, **kwargs), tmp_path / "x.buffer")
        assert loaded.max_priority == buffer.max_priority
        masses = loaded.priorities[:15]
        if not isinstance(loaded.scheme, RankBased):
            np.testing.assert_array_equal(masses, float(loaded.scheme.mass_of_new(loaded.max_priority)))
        assert (masses > 0).all()
        draws(loaded)
        save_buffer(loaded, tmp_path / "x.buffer")
        with pytest.warns(UserWarning, match="all priorities"):
            load_buffer(buffer, tmp_path / "x.buffer")
        save_buffer(buffer, tmp_path / "x.buffer")


def other_space(name: str, value: Any) -> PrioritizedReplayBuffer:
    arguments: dict[str, Any] = dict(
        observation_space=OBSERVATION_SPACES["box"], action_space=ACTION_SPACES["box"], n_envs=2, device="cpu"
    )
    return PrioritizedReplayBuffer(40, **{**arguments, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("observation_space", spaces.Box(-1, 1, (4,), np.float32)),
        ("observation_space", spaces.Box(-1, 1, (3,), np.float64)),
        ("observation_space", spaces.MultiDiscrete([3, 3, 3])),
        ("action_space", spaces.Box(-2, 2, (2,), np.float32)),
        ("action_space", spaces.Discrete(4)),
        ("n_envs", 4),
    ],
)
def test_what_does_not_fit_is_refused(name, value, tmp_path):
    """The error names what differs and both values; the live buffer stays, and nothing is loaded in part."""
    buffer = make_buffer(20, 2)
    fill([buffer], 15)
    save_buffer(buffer, tmp_path / "x.buffer")
    live = other_space(name, value)
    fill([live], 3)
    before = held(live)
    with pytest.raises(ValueError, match=f"(?s){name}.*{re.escape(str(buffer.n_envs if name == 'n_envs' else 'Box'))}"):
        load_buffer(live, tmp_path / "x.buffer")
    assert_same(held(live), before)


def test_bounds_of_observations_do_not_matter(tmp_path):
    """They are stored as they are; only actions are scaled with theirs."""
    buffer = make_buffer(20, 2)
    fill([buffer], 15)
    save_buffer(buffer, tmp_path / "x.buffer")
    loaded = load_buffer(
        other_space("observation_space", spaces.Box(-np.inf, np.inf, (3,), np.float32)), tmp_path / "x.buffer"
    )
    np.testing.assert_array_equal(held(loaded)["obs"], held(buffer)["obs"])


@pytest.mark.parametrize("value", [0, -1, 1.5, True, None, "2"])
def test_bad_keep(value, tmp_path):
    with pytest.raises(ValueError, match=f"keep.*{re.escape(repr(value))}"):
        save_buffer(make_buffer(), tmp_path / "x.buffer", keep=value)
    assert not (tmp_path / "x.buffer").exists()


# ---- the model's interface


def trained(cls: Any = PERSAC, env: str = "Pendulum-v1", n: int = 60, **kwargs: Any) -> Any:
    return cls("MlpPolicy", env, learning_starts=20, buffer_size=100, seed=0, device="cpu", **kwargs).learn(n)


def test_model_saves_and_loads(tmp_path):
    """The suffix chooses the format; an empty buffer is filled, another one is replaced."""
    model = trained()
    model.save_replay_buffer(tmp_path / "a.buffer")
    assert (tmp_path / "a.buffer").is_dir()
    model.save_replay_buffer(str(tmp_path / "b"))
    assert (tmp_path / "b.pkl").is_file()
    expected = held(model.replay_buffer)

    fresh = PERSAC("MlpPolicy", "Pendulum-v1", buffer_size=100, device="cpu")
    empty = fresh.replay_buffer
    fresh.load_replay_buffer(str(tmp_path / "a.buffer"))
    assert fresh.replay_buffer is empty
    assert_same(held(empty), expected)

    other = trained(n=30)
    old = other.replay_buffer
    before = held(old)
    other.load_replay_buffer(tmp_path / "a.buffer")
    assert other.replay_buffer is not old
    assert_same(held(old), before)
    assert_same(held(other.replay_buffer), expected)

    other.replay_buffer = None  # as SB3's own tests do it
    other.load_replay_buffer(tmp_path / "a.buffer")
    assert_same(held(other.replay_buffer), expected)


def test_loading_goes_by_content(tmp_path):
    """A pickle called ``.buffer`` is a pickle, a directory of any name is one of ours, and neither stands in for the other."""
    model = trained()
    with (tmp_path / "a.buffer").open("wb") as file:
        pickle.dump(model.replay_buffer, file)
    with pytest.raises(NotADirectoryError, match=r"a\.buffer"):
        model.save_replay_buffer(tmp_path / "a.buffer")
    expected = held(model.replay_buffer)
    model.load_replay_buffer(tmp_path / "a.buffer")
    assert_same(held(model.replay_buffer), expected)

    save_buffer(model.replay_buffer, tmp_path / "plain_name")
    model.load_replay_buffer(tmp_path / "plain_name")
    assert_same(held(model.replay_buffer), expected)
    for path in ("none.buffer", "none"):
        with pytest.raises(FileNotFoundError, match="none"):
            model.load_replay_buffer(tmp_path / path)
    (tmp_path / "empty.buffer").mkdir()
    model.save_replay_buffer(tmp_path / "empty")  # empty.pkl: not looked at
    with pytest.raises(FileNotFoundError, match=r"empty\.buffer"):
        model.load_replay_buffer(tmp_path / "empty.buffer")
    assert_same(held(model.replay_buffer), expected)


def test_an_error_leaves_the_model_as_it_was(tmp_path):
    model = trained()
    model.save_replay_buffer(tmp_path / "a.buffer")
    next((tmp_path / "a.buffer").glob("seg-*")).write_bytes(b"")
    buffer, before = model.replay_buffer, held(model.replay_buffer)
    with pytest.raises(ValueError, match=r"seg-.* has 0 bytes"):
        model.load_replay_buffer(tmp_path / "a.buffer")
    assert model.replay_buffer is buffer
    assert_same(held(buffer), before)


def test_a_buffer_that_was_never_used(tmp_path):
    model = PERTD3("MlpPolicy", "Pendulum-v1", buffer_size=100, device="cpu")
    model.save_replay_buffer(tmp_path / "a.buffer")
    model.load_replay_buffer(tmp_path / "a.buffer")
    assert model.replay_buffer.size() == 0
    model.learn(150)


def test_an_own_buffer_class(tmp_path):
    """Its own attributes stay those of the model's buffer."""

    class Own(PrioritizedReplayBuffer):
        tag = None

    model = trained(replay_buffer_class=Own)
    model.save_replay_buffer(tmp_path / "a.buffer")
    fresh = PERSAC("MlpPolicy", "Pendulum-v1", buffer_size=100, device="cpu", replay_buffer_class=Own)
    fresh.replay_buffer.tag = "mine"
    fresh.load_replay_buffer(tmp_path / "a.buffer")
    assert isinstance(fresh.replay_buffer, Own) and fresh.replay_buffer.tag == "mine"
    assert_same(held(fresh.replay_buffer), held(model.replay_buffer))


def test_what_comes_after_loading_is_cut_off(tmp_path):
    """No n-step window goes from what was loaded to what is added next, also where an empty buffer was filled in place."""
    model = trained(PERDQN, "CartPole-v1", n_steps=3)
    model.save(tmp_path / "m")
    model.save_replay_buffer(tmp_path / "a.buffer")
    resumed = PERDQN.load(tmp_path / "m", env=model.get_env())
    resumed.load_replay_buffer(tmp_path / "a.buffer")
    newest = resumed.replay_buffer.pos - 1
    resumed.learn(3, reset_num_timesteps=False)
    assert resumed.replay_buffer.dones[newest].all()


def test_infos_that_only_a_pickle_can_hold(tmp_path):
    """Are refused before anything is written, and named."""
    env = make_env(1)
    buffer = make_her(PrioritizedHerReplayBuffer, env, copy_info_dict=True)
    Player(env, buffer).step(6)
    save_buffer(buffer, tmp_path / "x.buffer")
    buffer.infos[0, 0]["deep"] = [{"x": object()}]
    before = sorted(os.listdir(tmp_path / "x.buffer"))
    with pytest.raises(ValueError, match=r"info\['deep'\].*object"):
        save_buffer(buffer, tmp_path / "x.buffer", full=True)
    assert sorted(os.listdir(tmp_path / "x.buffer")) == before


def test_converting_a_pickle(tmp_path):
    """SB3's and ours, at the command line, which wants consent."""
    from sb3_per.persistence.convert import main

    stock = ReplayBuffer(20, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", 2)
    ours = make_buffer(10, 2, scheme="rank")
    fill([stock, ours], 13)
    for name, buffer in (("stock", stock), ("ours", ours)):
        source, target = tmp_path / f"{name}.pkl", tmp_path / f"{name}.buffer"
        source.write_bytes(pickle.dumps(buffer))
        with pytest.raises(SystemExit):
            main([str(source), str(target)])
        assert not target.exists()
        main([str(source), str(target), "--trust"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = load_buffer(make_buffer(10, 2, scheme="rank"), target)
        np.testing.assert_array_equal(held(loaded)["obs"], held(ours)["obs"])
        with pytest.raises(ValueError, match="there already"):
            main([str(source), str(target), "--trust"])
    assert_same(held(loaded), held(ours))
    with pytest.raises(ValueError, match=r"ends in \.buffer"):
        main([str(source), str(tmp_path / "x.pkl"), "--trust"])


def test_a_generation_of_ones_choice(tmp_path):
    """Its manifest stands for it."""
    buffer = make_buffer(20, 2)
    states = []
    for i in range(3):
        fill([buffer], 8, seed=i)
        save_buffer(buffer, tmp_path / "x.buffer", i, keep=3)
        states.append(held(buffer))
    for i, (manifest, state) in enumerate(zip(sorted((tmp_path / "x.buffer").glob("gen-*")), states, strict=True)):
        assert Manifest.read(manifest).num_timesteps == i
        assert_same(held(load_buffer(emptied(buffer), manifest)), state)


def test_a_smaller_buffer_does_not_draw_what_the_newest_next_observation_lies_over(tmp_path):
    settings = dict(n_envs=2, optimize_memory_usage=True, handle_timeout_termination=False)
    buffer = make_buffer(8, **settings)
    fill([buffer], 20)
    buffer.sample(2)
    save_buffer(buffer, tmp_path / "it.buffer")
    loaded = load_buffer(make_buffer(4, **settings), tmp_path / "it.buffer")
    assert loaded.full and np.count_nonzero(loaded.priorities) == loaded._n_drawable == 3 * 2
    assert (loaded.priorities[loaded.pos] == 0).all()
