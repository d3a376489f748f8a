"""from_vector_env against DummyVecEnv step by step, and against the raw stream of EnvPool."""

import functools
import importlib
import math
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import RecordEpisodeStatistics, TimeLimit
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

import sb3_per
from sb3_per.integrations import from_vector_env
from sb3_per.integrations.vector_sources import split_infos

N = 3
MODES = list(AutoresetMode)


class Goals(gym.Env):
    """Dict observations; ends by success, by its own limit, or by both at once; infos that come and go."""

    observation_space = spaces.Dict(
        observation=spaces.Box(-np.inf, np.inf, (2, 2), np.float32),
        achieved_goal=spaces.Box(-np.inf, np.inf, (2,), np.float32),
        desired_goal=spaces.Box(-np.inf, np.inf, (2,), np.float32),
    )
    action_space = spaces.Box(-1, 1, (2,), np.float32)
    gain = 1.0

    def _observation(self) -> dict[str, np.ndarray]:
        x = self.x.astype(np.float32)
        return {"observation": np.outer(x, x), "achieved_goal": x, "desired_goal": self.goal}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(size=2), 0
        self.goal = self.np_random.normal(size=2).astype(np.float32)
        return self._observation(), {"start": float(self.x[0]), "option": (options or {}).get("option", 0)}

    def step(self, action: np.ndarray) -> Any:
        self.x = self.x + self.gain * 0.3 * action + self.np_random.normal(size=2) * 0.1
        self.t += 1
        terminated = bool(self.np_random.random() < 0.1)
        info: dict[str, Any] = {"is_success": terminated, "where": self.x.copy(), "nested": {"t": self.t}}
        if self.t % 3 == 0:
            info["third"] = "yes"
        truncated = bool(self.t >= 9 or self.np_random.random() < 0.05)
        return self._observation(), float(self.np_random.normal()), terminated, truncated, info

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, _: Any) -> np.ndarray:
        return -(np.linalg.norm(achieved - desired, axis=-1) > 0.5).astype(np.float32)


def make_pool(task: str, env_type: str = "gymnasium", **settings: Any) -> Any:
    """Make an EnvPool, or skip the test where EnvPool is not installed."""
    envpool = pytest.importorskip("envpool", reason="EnvPool is not installed; it has no wheel for Python 3.10")
    return envpool.make(task, env_type=env_type, **settings)


def pendulum() -> gym.Env:
    return TimeLimit(gym.make("Pendulum-v1").unwrapped, 7)


def cartpole() -> gym.Env:
    return gym.make("CartPole-v1", max_episode_steps=12)


MAKERS = {"pendulum": pendulum, "cartpole": cartpole, "goals": Goals}
# Each environment in one process; observations that the vector environment writes over, and processes, with fewer.
KINDS: dict[Any, tuple[str, ...]] = {
    SyncVectorEnv: tuple(MAKERS),
    functools.partial(SyncVectorEnv, copy=False): ("pendulum", "goals"),
    AsyncVectorEnv: ("pendulum", "goals"),
}


def equal(a: Any, b: Any) -> bool:
    """Whether two observations or infos are the same, to the bit."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
    return a == b


def without_time(infos: list[dict[str, Any]]) -> list[dict[str, Any]]:
    for info in infos:
        if "episode" in info:
            info["episode"].pop("t")
    return infos


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in KINDS.items() for name in names])
def test_steps_are_those_of_dummy_vec_env(kind: Any, name: str, mode: AutoresetMode) -> None:
    expected = DummyVecEnv([lambda: Monitor(MAKERS[name]())] * N)
    env = from_vector_env(kind([MAKERS[name]] * N, autoreset_mode=mode))
    assert env.observation_space == expected.observation_space and env.action_space == expected.action_space
    env.action_space.seed(0)
    ended, seen = 0, []
    for part in range(2):
        for e in (env, expected) if part == 0 else ():  # the second reset has no seeds and options of its own
            e.seed(5)
            if name == "goals":
                e.set_options({"option": 3})
        observations = env.reset()
        assert equal(observations, expected.reset())
        assert env.reset_infos == expected.reset_infos
        for _ in range(60):
            actions = np.stack([env.action_space.sample() for _ in range(N)])
            got, want = env.step(actions), expected.step(actions)
            seen.append((got[0], {k: v.copy() for k, v in got[0].items()} if isinstance(got[0], dict) else got[0].copy()))
            for a, b in zip(got[:3], want[:3], strict=True):
                assert equal(a, b if not isinstance(b, dict) else dict(b))
            assert all(equal(a, b) for a, b in zip(without_time(got[3]), without_time(want[3]), strict=True))
            assert all(equal(a, b) for a, b in zip(env.reset_infos, expected.reset_infos, strict=True))
            ended += got[2].sum()
    assert ended > 20
    assert all(equal(now, then) for now, then in seen), "an observation changed after it had been returned"
    env.close()


def action_table(env: Any, n_steps: int) -> np.ndarray:
    env.action_space.seed(0)
    return np.stack([[env.action_space.sample() for _ in range(env.num_envs)] for _ in range(n_steps)])


def raw_episodes(task: str, n_steps: int, **settings: Any) -> list[list[Any]]:
    """Transitions of each environment as EnvPool itself makes them, in which a step after the end is a reset."""
    pool = make_pool(task, num_envs=N, seed=3, **settings)
    table, count, over = action_table(pool, n_steps), np.zeros(N, int), np.zeros(N, bool)
    previous, _ = pool.reset()
    steps: list[list[Any]] = [[] for _ in range(N)]
    while count.min() < n_steps:
        actions = table[np.minimum(count, n_steps - 1), np.arange(N)]
        observations, rewards, terminated, truncated, infos = pool.step(actions)
        for i in np.flatnonzero(~over):
            rows = [{k: v[i] for k, v in o.items()} if isinstance(o, dict) else o[i] for o in (previous, observations)]
            info = {key: value[i] for key, value in infos.items() if key not in ("env_id", "players", "elapsed_step")}
            steps[i].append((rows[0], rewards[i], rows[1], terminated[i], truncated[i], info))
            count[i] += 1
        over, previous = terminated | truncated, observations
    return [part[:n_steps] for part in steps]


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")  # of EnvPool's own spaces
@pytest.mark.parametrize(
    ("task", "settings"),
    [
        ("CartPole-v1", dict(max_episode_steps=12)),
        ("Pendulum-v1", dict(max_episode_steps=7)),
        ("ReacherHard-v1", dict(max_episode_steps=9)),
        ("FetchReach-v4", dict(max_episode_steps=9)),
        ("Hopper-v4", dict(max_episode_steps=15)),
        ("Breakout-v5", dict(episodic_life=True, max_episode_steps=60)),
    ],
)
def test_transitions_are_those_of_envpool_without_its_resets(task: str, settings: dict[str, Any]) -> None:
    n_steps = 60
    pool = make_pool(task, num_envs=N, seed=3, **settings)
    expected, table = raw_episodes(task, n_steps, **settings), action_table(pool, n_steps)
    env = from_vector_env(pool)
    row = lambda o, i: {k: v[i] for k, v in o.items()} if isinstance(o, dict) else o[i]  # noqa: E731
    before, returns, kinds = env.reset(), np.zeros(N), set()
    for t in range(n_steps):
        after, rewards, dones, infos = env.step(table[t])
        for i in range(N):
            last = infos[i]["terminal_observation"] if dones[i] else row(after, i)
            was, reward, then, terminated, truncated, info = expected[i][t]
            assert equal(row(before, i), was) and equal(last, then) and rewards[i] == reward
            assert dones[i] == (terminated or truncated)
            assert infos[i]["TimeLimit.truncated"] is bool(truncated and not terminated)
            ours = {"TimeLimit.truncated", "terminal_observation", "episode"}
            assert infos[i].keys() - ours == info.keys() - ours
            assert all(np.array_equal(infos[i][key], info[key]) for key in info.keys() - ours)
            kinds.add((bool(terminated), bool(truncated)))
            returns[i] += reward
            assert ("episode" in infos[i]) == dones[i]
            if dones[i]:
                assert infos[i]["episode"]["r"] == pytest.approx(returns[i], abs=1e-6)
                returns[i] = 0
        before = after
    assert (False, True) in kinds or (True, False) in kinds


@pytest.mark.parametrize("mode", [*MODES, "envpool"])
def test_staggered_episodes_end_one_after_the_other(mode: Any) -> None:
    n = 7  # which does not divide the length
    if mode == "envpool":
        vector = make_pool("Pendulum-v1", num_envs=n, max_episode_steps=40)
    else:
        vector = SyncVectorEnv([lambda: TimeLimit(gym.make("Pendulum-v1").unwrapped, 40)] * n, autoreset_mode=mode)
    env = from_vector_env(vector, stagger=40)
    for _ in range(2):
        observations, ends = env.reset(), []
        firsts = [math.ceil(40 * (i + 1) / n) for i in range(n)]
        for t in range(1, 121):
            last = observations
            observations, rewards, dones, infos = env.step(np.zeros((n, 1), np.float32))
            assert (rewards != 0).all()
            for i in np.flatnonzero(dones):
                ends.append((t, i))
                assert infos[i]["TimeLimit.truncated"] is True
                # The pole moves little in a step, and starts anywhere.
                assert np.abs(infos[i]["terminal_observation"][:2] - last[i][:2]).max() < 0.45
                first = t == firsts[i] < 40
                assert ("episode" in infos[i]) is not first
                if not first:
                    assert infos[i]["episode"]["l"] == 40
        assert ends == [(first + length, i) for length in (0, 40, 80) for i, first in enumerate(firsts)]


def test_an_environment_that_resets_others_too_is_refused() -> None:
    env = from_vector_env(gym.make_vec("CartPole-v1", 4, "vector_entry_point"))
    env.seed(0)
    env.reset()
    with pytest.raises(ValueError, match="resets other environments"):
        for _ in range(200):
            env.step(np.ones(4, dtype=np.int64))


@pytest.mark.parametrize("mode", MODES)
def test_wrappers_of_gymnasium_may_be_around_the_vector_environment(mode: AutoresetMode) -> None:
    vector = SyncVectorEnv([cartpole] * N, autoreset_mode=mode)
    # Its returns are without the factor, so they are not replaced by others.
    counting = gym.wrappers.vector.RecordEpisodeStatistics(vector)
    wrapped = gym.wrappers.vector.TransformReward(counting, lambda rewards: 2 * rewards)
    env = from_vector_env(wrapped)
    expected = from_vector_env(SyncVectorEnv([cartpole] * N))
    env.seed(0), expected.seed(0)
    assert equal(env.reset(), expected.reset())
    assert env.get_attr("render_mode") == [None] * N
    for t in range(60):
        (a, _, dones, infos), (b, *_, want) = (e.step(np.full(N, t % 2)) for e in (env, expected))
        assert equal(a, b)
        for i in np.flatnonzero(dones):
            assert infos[i]["episode"]["r"] == want[i]["episode"]["r"] and infos[i]["episode"]["l"] == want[i]["episode"]["l"]


def test_same_step_without_last_observations_is_refused() -> None:
    class Forgetful(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            infos.pop("final_obs", None)
            return *rest, infos

    env = from_vector_env(Forgetful([pendulum], autoreset_mode=AutoresetMode.SAME_STEP))
    env.reset()
    with pytest.raises(ValueError, match="final_obs"):
        for _ in range(7):
            env.step(np.zeros((1, 1), np.float32))


def test_what_cannot_work_is_refused_when_it_is_made() -> None:
    vector = AsyncVectorEnv([pendulum] * 2, shared_memory=False)
    with pytest.raises(ValueError, match="shared_memory=True"):
        from_vector_env(vector)
    vector.close()
    for bad in (0, -3, 1.5, True, "10"):
        with pytest.raises(ValueError, match=f"stagger must be None or an integer of at least 1, not {bad!r}"):
            from_vector_env(SyncVectorEnv([pendulum]), stagger=bad)
    for other in (pendulum(), DummyVecEnv([pendulum]), None):
        with pytest.raises(TypeError, match="SyncVectorEnv"):
            from_vector_env(other)


def test_envpools_that_cannot_work_are_refused_when_they_are_made() -> None:
    with pytest.raises(ValueError, match="batch_size"):
        from_vector_env(make_pool("Pendulum-v1", num_envs=4, batch_size=2))
    with pytest.raises(TypeError, match="env_type"):
        from_vector_env(make_pool("Pendulum-v1", env_type="dm", num_envs=4))
    with pytest.raises(TypeError, match="without wrappers"):
        from_vector_env(gym.wrappers.vector.RecordEpisodeStatistics(make_pool("Pendulum-v1", num_envs=4)))
    assert from_vector_env(make_pool("Pendulum-v1", env_type="gym", num_envs=4)).num_envs == 4  # a name of the same type


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv, "envpool"])
def test_closed_environments_are_refused(kind: Any) -> None:
    def make_env() -> Any:
        return make_pool("Pendulum-v1", num_envs=1) if kind == "envpool" else kind([pendulum])

    env, closed_below, closed = (make_env() for _ in range(3))
    env, outer = from_vector_env(env), from_vector_env(closed_below)
    env.reset(), outer.reset()
    env.close(), closed_below.close(), closed.close()
    env.close()
    for each in (env, outer):
        with pytest.raises(RuntimeError, match="are closed: make new ones"):
            each.step(np.zeros((1, 1), np.float32))
        with pytest.raises(RuntimeError, match="are closed: make new ones"):
            each.reset()
    with pytest.raises(RuntimeError, match="are closed: make new ones"):
        from_vector_env(closed)


def test_flatten_follows_the_order_of_the_space() -> None:
    make = lambda: make_pool("FetchReach-v4", num_envs=N, seed=1, max_episode_steps=4)  # noqa: E731
    pool, env, kept = make(), from_vector_env(make(), flatten=True), from_vector_env(make())
    # Gymnasium sorts the keys; the space of EnvPool has another order.
    keys = ["achieved_goal", "desired_goal", "observation"]
    assert list(pool.single_observation_space) != list(kept.observation_space) == keys
    first, _ = pool.reset()
    assert equal(env.reset(), np.concatenate([first[key] for key in keys], axis=1).astype(np.float32))
    assert list(kept.reset()) == keys
    for _ in range(4):
        *_, infos = kept.step(np.zeros((N, 4), np.float32))
    assert list(infos[0]["terminal_observation"]) == keys


def test_flatten_makes_one_vector() -> None:
    env = from_vector_env(make_pool("ReacherHard-v1", num_envs=N, max_episode_steps=5), flatten=True)
    other = from_vector_env(make_pool("ReacherHard-v1", num_envs=N, max_episode_steps=5))
    assert env.observation_space == spaces.Box(-np.inf, np.inf, (6,), np.float32)
    assert set(other.observation_space.keys()) == {"position", "to_target", "velocity"}
    flat, parts = env.reset(), other.reset()
    for _ in range(12):
        join = lambda o: np.concatenate([*o.values()], axis=-1).astype(np.float32)  # noqa: E731
        assert equal(flat, join(parts))
        assert (parts["velocity"] >= other.observation_space["velocity"].low).all()
        actions = np.zeros((N, 2), np.float32)
        (flat, _, dones, infos), (parts, _, _, other_infos) = env.step(actions), other.step(actions)
        if dones[0]:
            assert equal(infos[0]["terminal_observation"], join(other_infos[0]["terminal_observation"]))
    for mode in MODES:
        goals = from_vector_env(SyncVectorEnv([Goals] * N, autoreset_mode=mode), flatten=True)
        goals.reset()
        for _ in range(30):
            observations, _, dones, infos = goals.step(np.zeros((N, 2), np.float32))
            assert observations.shape == (N, 8) and observations.dtype == np.float32
            assert all(infos[i]["terminal_observation"].shape == (8,) for i in np.flatnonzero(dones))


@pytest.mark.parametrize("kind", [SyncVectorEnv, AsyncVectorEnv])
def test_methods_and_attributes_of_single_environments(kind: Any) -> None:
    env = from_vector_env(kind([lambda: TimeLimit(Goals(), 50)] * N))
    env.reset()
    assert env.get_attr("gain") == [1.0] * N and env.get_attr("gain", 1) == [1.0]
    env.set_attr("gain", 2.0, indices=[1])
    assert env.get_attr("gain") == [1.0, 2.0, 1.0]
    assert env.has_attr("gain") and env.has_attr("compute_reward") and not env.has_attr("nothing")
    assert env.render_mode is None
    goals = np.zeros((5, 2), np.float32)
    rewards = env.env_method("compute_reward", goals, desired=goals, _=[{}] * 5)
    assert len(rewards) == N and all((part == 0).all() and part.shape == (5,) for part in rewards)
    for call in (env.env_method, env.get_attr):
        with pytest.raises(AttributeError, match="nothing"):
            call("nothing")
    assert env.env_is_wrapped(TimeLimit) == [True] * N and env.env_is_wrapped(RecordEpisodeStatistics) == [False] * N
    assert env.env_is_wrapped(Monitor, indices=0) == [True]
    env.step(np.zeros((N, 2), np.float32))
    env.close()


def test_a_method_of_some_environments_needs_them_in_this_process() -> None:
    goals = np.zeros((5, 2), np.float32)
    arguments = ("compute_reward", goals, goals, [{}] * 5)
    (rewards,) = from_vector_env(SyncVectorEnv([Goals] * N)).env_method(*arguments, indices=[2])
    assert (rewards == 0).all() and rewards.shape == (5,)
    env = from_vector_env(AsyncVectorEnv([Goals] * N))
    with pytest.raises(NotImplementedError, match=r"not 'compute_reward' of \[2\] alone: use SyncVectorEnv, or SubprocVecEnv"):
        env.env_method(*arguments, indices=[2])
    env.close()


def test_envpool_says_what_it_has_not() -> None:
    env = from_vector_env(make_pool("FetchReach-v4", num_envs=2, seed=4))
    with pytest.raises(NotImplementedError, match="use SyncVectorEnv"):
        env.env_method("compute_reward", 1, 2, 3)
    with pytest.raises(NotImplementedError, match="no attributes of single environments"):
        env.set_attr("gain", 1)
    with pytest.raises(AttributeError):
        env.get_attr("nothing")
    with pytest.warns(UserWarning, match="envpool.make"):
        env.seed(5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert env.seed(4) == [4, 5]


def test_rendering() -> None:
    env = from_vector_env(gym.make_vec("CartPole-v1", 2, "sync", render_mode="rgb_array"))
    env.reset()
    assert env.render_mode == "rgb_array"
    try:
        images = env.get_images()
    except gym.error.DependencyNotInstalled:
        pytest.skip("pygame is not installed")
    assert len(images) == 2 and images[0].shape == (400, 600, 3)


def algorithm(name: str) -> Any:
    """Find an algorithm, or skip the test where SBX is not installed."""
    if name.startswith("sbx."):
        pytest.importorskip("sbx")
        return getattr(importlib.import_module("sb3_per.sbx"), name.removeprefix("sbx."))
    return getattr(sb3_per, name)


def train_and_go_on(cls: Any, make_env: Callable[[], Any], folder: Path) -> Any:
    """Train, save and load, go on in new environments, and return the model. It has 80 rows of ``N`` transitions."""
    settings = dict(learning_starts=20, train_freq=1, gradient_steps=1, batch_size=8, buffer_size=1_000)
    model = cls("MlpPolicy", make_env(), policy_kwargs=dict(net_arch=[8]), seed=0, **settings)
    model.learn(40 * N)
    model.save(folder / "model")
    model.save_replay_buffer(folder / "pool.buffer")
    model.get_env().close()
    loaded = cls.load(folder / "model", env=make_env())
    loaded.load_replay_buffer(folder / "pool.buffer")
    loaded.learn(40 * N, reset_num_timesteps=False)
    loaded.get_env().close()
    return loaded


ALGORITHMS = {"PERSAC": "pendulum", "PERDQN": "cartpole", "sbx.PERDQN": "cartpole"}


@pytest.mark.parametrize(
    ("name", "kind", "mode"),
    [("PERSAC", AsyncVectorEnv, AutoresetMode.NEXT_STEP), ("PERDQN", SyncVectorEnv, AutoresetMode.SAME_STEP)],
)
def test_training_saving_and_going_on_are_those_of_dummy_vec_env(name: str, kind: Any, mode: Any, tmp_path: Path) -> None:
    cls, maker = algorithm(name), MAKERS[ALGORITHMS[name]]
    makers: tuple[Callable[[], Any], ...] = (
        lambda: from_vector_env(kind([maker] * N, autoreset_mode=mode)),
        lambda: DummyVecEnv([lambda: Monitor(maker())] * N),
    )
    ours, theirs = (train_and_go_on(cls, make_env, tmp_path) for make_env in makers)
    for array in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "priorities"):
        assert equal(*(np.asarray(getattr(model.replay_buffer, array)) for model in (ours, theirs))), array
    # Equal priorities of the last batches come from equal networks. Not all are those of new transitions.
    assert len(np.unique(ours.replay_buffer.priorities)) > 20
    assert ours.num_timesteps == 80 * N and ours.replay_buffer.dones.sum() > 10
    assert without_time_of(ours.ep_info_buffer) == without_time_of(theirs.ep_info_buffer)


def without_time_of(episodes: Any) -> list[dict[str, Any]]:
    return [{key: value for key, value in episode.items() if key != "t"} for episode in episodes]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name.startswith("sbx") else []) for name in ALGORITHMS]
)
def test_training_in_envpool_stores_no_step_of_a_reset(name: str, tmp_path: Path) -> None:
    task, length = {"pendulum": ("Pendulum-v1", 7), "cartpole": ("CartPole-v1", 12)}[ALGORITHMS[name]]

    def make_env() -> Any:
        return from_vector_env(make_pool(task, num_envs=N, max_episode_steps=length, seed=0), stagger=length)

    model = train_and_go_on(algorithm(name), make_env, tmp_path)
    buffer = model.replay_buffer
    obs, following, ends = buffer.observations[:80], buffer.next_observations[:80], buffer.dones[:80].astype(bool)
    # The load is a break, too: the newest steps before it became truncations, if they were no ends.
    assert ends[39].all() and buffer.timeouts[39].any()
    goes_on = (obs[1:] == following[:-1]).all(axis=-1)
    assert (goes_on == ~ends[:-1]).all()
    # An episode that began anew has `length` steps at most, and only the first ones are cut before.
    starts = np.vstack([np.ones((1, N), bool), ends[:-1]])
    ages = np.zeros(N, int)
    for row in range(80):
        ages = np.where(starts[row], 1, ages + 1)
        assert (ages <= length).all() and (ends[row] | (ages < length)).all()
    if task == "Pendulum-v1":
        assert (buffer.rewards[:80] != 0).all() and buffer.timeouts[:80].sum() == ends.sum()


def test_hindsight_needs_environments_in_this_process() -> None:
    settings: dict[str, Any] = dict(
        replay_buffer_class=sb3_per.PrioritizedHerReplayBuffer,
        learning_starts=40,
        buffer_size=300,
        batch_size=8,
        policy_kwargs=dict(net_arch=[8]),
    )
    model = sb3_per.PERSAC("MultiInputPolicy", from_vector_env(SyncVectorEnv([Goals] * N)), **settings)
    model.learn(90)
    assert (np.isin(model.replay_buffer.sample(64).rewards, (-1, 0))).any()
    env = from_vector_env(AsyncVectorEnv([Goals] * N))
    with pytest.raises(NotImplementedError, match="use SyncVectorEnv, or SubprocVecEnv"):
        sb3_per.PERSAC("MultiInputPolicy", env, **settings).learn(90)
    env.close()
    pool = make_pool("FetchReach-v4", num_envs=N)
    with pytest.raises(ValueError, match="no compute_reward"):
        sb3_per.PERSAC("MultiInputPolicy", from_vector_env(pool), **settings)


def test_evaluation_counts_whole_episodes_alone() -> None:
    pool = make_pool("Pendulum-v1", num_envs=4, max_episode_steps=20)
    env = VecNormalize(from_vector_env(pool, stagger=20))
    model = sb3_per.PERSAC("MlpPolicy", env, policy_kwargs=dict(net_arch=[8]))
    # A warning would be an error. SB3 warns without a Monitor.
    _, lengths = evaluate_policy(model, env, n_eval_episodes=8, return_episode_rewards=True)
    assert lengths == [20] * 8


def test_wrappers_of_sb3_go_around_it() -> None:
    pool = make_pool("ReacherHard-v1", num_envs=4, max_episode_steps=10)
    with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
        env = VecNormalize(VecMonitor(from_vector_env(pool, flatten=True)))
    model = sb3_per.PERSAC("MlpPolicy", env, learning_starts=20, policy_kwargs=dict(net_arch=[8]), buffer_size=400)
    model.learn(200)
    assert model.replay_buffer.timeouts[:50].sum() == 20 and model.replay_buffer.dones[:50].sum() == 20
    assert {info["l"] for info in model.ep_info_buffer} == {10}
    # The statistics count terminal observations no more than VecNormalize does elsewhere: one of each step and reset.
    assert env.obs_rms.count == pytest.approx(4 * 51, abs=0.01)


def test_an_older_gymnasium_is_named(monkeypatch: Any) -> None:
    monkeypatch.delattr(gym.vector, "AutoresetMode")  # came with 1.1
    message = f"from_vector_env needs Gymnasium 1.1 or newer, found {gym.__version__}: pip install 'gymnasium>=1.1'"
    with pytest.raises(ImportError, match=f"^{re.escape(message)}$"):
        from_vector_env(None)


def test_infos_without_masks_and_with_scalars() -> None:
    infos = {"a": np.array([1, 2]), "_a": np.array([True, False]), "b": [3, 4], "fps": 60.0, "c": {"d": np.array([5, 6])}}
    assert split_infos(infos, 2) == [{"a": 1, "b": 3, "fps": 60.0, "c": {"d": 5}}, {"b": 4, "fps": 60.0, "c": {"d": 6}}]
