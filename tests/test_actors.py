"""Actors without Ray: one of them is the synchronous algorithm, several are reproducible, and nothing is lost or doubled."""

import copy
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import DQN
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.noise import NormalActionNoise, OrnsteinUhlenbeckActionNoise
from stable_baselines3.common.vec_env import VecFrameStack, VecMonitor, VecNormalize, VecTransposeImage

from sb3_per import PERDDPG, PERDQN, PERQRDQN, PERSAC, PERTD3, PERTQC, PERCrossQ, PERRecurrentDQN, PrioritizedHerReplayBuffer
from sb3_per.distributed import NoActorAliveError, exploration_ladder, make_actors, model_copy
from sb3_per.distributed.crew import Crew, CrewSettings
from sb3_per.distributed.engines import ActorDiedError, LocalEngine
from sb3_per.distributed.messages import Failure, Setup
from tests.actor_envs import Images, Tracked, Unlucky

SMALL: dict[str, Any] = dict(policy_kwargs=dict(net_arch=[8]), batch_size=8, learning_starts=20, buffer_size=200, seed=3)


def local(env: Any, n_actors: int = 2, **kwargs: Any) -> Any:
    return make_actors(env, n_actors=n_actors, engine="local", **{"chunk": 5, **kwargs})


def small(cls: Any, env: Any, policy: str = "MlpPolicy", **kwargs: Any) -> Any:
    return cls(policy, env, **copy.deepcopy({**SMALL, **kwargs}))  # SB3 writes into them


def assert_same_run(actual: Any, expected: Any) -> None:
    """Weights, transitions and priorities are equal to the bit."""
    for (name, a), b in zip(actual.policy.state_dict().items(), expected.policy.state_dict().values(), strict=True):
        assert th.equal(a, b), name
    buffers = actual.replay_buffer, expected.replay_buffer
    for name in ("actions", "rewards", "dones", "timeouts", "priorities", "transition_ids"):
        np.testing.assert_array_equal(*(getattr(buffer, name) for buffer in buffers), err_msg=name)
    for name in ("num_timesteps", "_n_updates", "_episode_num", "_n_calls"):
        assert getattr(actual, name, None) == getattr(expected, name, None), name


# ---- one actor that is never ahead


CONFIGURATIONS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "sac": (PERSAC, "Pendulum-v1", {}),
    "sac-sde": (PERSAC, "Pendulum-v1", dict(use_sde=True)),
    "sac-n-steps": (PERSAC, "Pendulum-v1", dict(n_steps=3, learning_starts=0)),
    "sac-ratio": (PERSAC, "Pendulum-v1", dict(train_freq=4, gradient_steps=-1)),
    "td3": (PERTD3, "Pendulum-v1", dict(action_noise=NormalActionNoise(np.zeros(1), 0.1 * np.ones(1)))),
    "ddpg": (PERDDPG, "Pendulum-v1", dict(action_noise=OrnsteinUhlenbeckActionNoise(np.zeros(1), 0.1 * np.ones(1)))),
    "tqc": (PERTQC, "Pendulum-v1", {}),
    "crossq": (PERCrossQ, "Pendulum-v1", {}),
    "dqn": (PERDQN, "CartPole-v1", dict(target_update_interval=7)),
    "dqn-dict": (PERDQN, lambda: Tracked(is_dict=True, truncates=True), dict(policy="MultiInputPolicy", n_steps=2)),
    "qrdqn": (PERQRDQN, "CartPole-v1", {}),
}


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_one_actor_without_lag_is_the_synchronous_algorithm(name):
    cls, env, kwargs = CONFIGURATIONS[name]
    runs = []
    for make in (make_vec_env, lambda env: local(env, 1, chunk=1, initial_priorities="max")):
        model = small(cls, make(env), **kwargs)
        model.learn(60)
        model.learn(20, reset_num_timesteps=False)  # in the middle of an episode
        model.learn(20)
        runs.append(model)
    assert_same_run(*runs)


@pytest.mark.parametrize(
    "wrap", [VecNormalize, lambda env: VecFrameStack(env, 3), lambda env: VecNormalize(VecFrameStack(env, 2))]
)
def test_wrappers_are_rebuilt_around_an_actor(wrap):
    """Its statistics, and what it remembers, are those that it has where steps are synchronous."""
    runs = []
    for make in (make_vec_env, lambda env, n_envs: local(env, 1, n_envs=n_envs, chunk=1, initial_priorities="max")):
        model = small(PERDQN, wrap(make(Tracked, n_envs=2)))
        model.learn(64)
        model.learn(40, reset_num_timesteps=False)
        runs.append(model)
    assert_same_run(*runs)
    if runs[0].get_vec_normalize_env() is not None:
        first, second = (model.get_vec_normalize_env() for model in runs)
        np.testing.assert_array_equal(first.obs_rms.mean, second.obs_rms.mean)
        assert first.ret_rms.var == second.ret_rms.var and first.ret_rms.count == second.ret_rms.count
        np.testing.assert_array_equal(first.returns, second.returns)


@pytest.mark.parametrize("frames", [None, 2])
def test_images(frames):
    runs = []
    for make in (make_vec_env, lambda env: local(env, 1, chunk=1, initial_priorities="max")):
        env = VecTransposeImage(VecFrameStack(make(Images), 2))
        kwargs = dict(replay_buffer_kwargs=dict(frames=frames), policy_kwargs=dict(net_arch=[4]), batch_size=4)
        model = small(PERDQN, env, "CnnPolicy", **kwargs)
        model.learn(40)
        runs.append(model)
    assert_same_run(*runs)


# ---- several


@pytest.mark.parametrize("in_flight", [1, 2])
def test_local_runs_are_reproducible(in_flight):
    runs = []
    for _ in range(2):
        model = small(PERSAC, local("Pendulum-v1", 3, n_envs=2, in_flight=in_flight))
        model.learn(200)
        runs.append(model)
    assert_same_run(*runs)


class Follower(BaseCallback):
    """Remembers what callbacks are shown."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []

    def _on_step(self) -> bool:
        names = ("rewards", "dones", "infos", "new_obs")
        self.seen.append({"num_timesteps": self.num_timesteps, **{name: self.locals[name] for name in names}})
        return True


@pytest.mark.parametrize("n_actors, n_envs, chunk, total", [(2, 1, 5, 100), (3, 2, 4, 101), (2, 3, 50, 7), (5, 1, 1, 33)])
def test_steps_are_counted_as_sb3_counts_them(n_actors, n_envs, chunk, total):
    """A call of the callback for as many transitions as there are environments; the end is where it was asked for."""
    env = local(Tracked, n_actors, n_envs=n_envs, chunk=chunk)
    model, follower = small(PERDQN, env, train_freq=1, learning_starts=0), Follower()
    model.learn(total, callback=follower)
    assert model.num_timesteps == total == model.replay_buffer.column_steps.sum()
    assert [seen["num_timesteps"] for seen in follower.seen] == [*range(env.num_envs, total, env.num_envs), total]
    for name in ("rewards", "dones", "infos", "new_obs"):
        assert sum(len(seen[name]) for seen in follower.seen) == total
    n_episodes = sum(seen["dones"].sum() for seen in follower.seen)
    assert model._episode_num == n_episodes == sum("episode" in info for seen in follower.seen for info in seen["infos"])
    assert model._n_updates == len(follower.seen) == model._n_calls


@pytest.mark.parametrize("train_freq, gradient_steps, asked", [(1, 1, 1 / 4), (2, 3, 3 / 8), (1, -1, 1.0), (3, 0, 0.0)])
def test_ratio(train_freq, gradient_steps, asked):
    """``train_freq`` and ``gradient_steps`` mean what they mean where steps are synchronous."""
    kwargs = dict(train_freq=train_freq, gradient_steps=gradient_steps, learning_starts=24)
    synchronous = small(PERDQN, make_vec_env(Tracked, n_envs=4), **kwargs)
    synchronous.learn(240)
    env = local(Tracked, 4, in_flight=2)
    model = small(PERDQN, env, **kwargs)
    model.learn(240)
    assert model._n_updates == synchronous._n_updates
    metrics = env.learning_loop.metrics
    assert metrics.n_sampled == model._n_updates * 8
    assert metrics.n_sampled / metrics.n_inserted == pytest.approx(8 * asked)


def test_warm_up_is_as_long_as_it_was_asked_for():
    """The first transitions are random over all actors together, whichever are ahead."""
    model = small(
        PERDQN, local(Tracked, 3, in_flight=2), learning_starts=60, exploration_initial_eps=0.0, exploration_final_eps=0.0
    )
    for parameter in model.policy.parameters():
        parameter.data.zero_()  # the first action is the best, always
    model.learn(60)
    assert 15 < (model.replay_buffer.actions[:20] == 1).sum() < 45
    model = small(
        PERDQN, local(Tracked, 3, in_flight=2), learning_starts=0, exploration_initial_eps=0.0, exploration_final_eps=0.0
    )
    for parameter in model.policy.parameters():
        parameter.data.zero_()
    model.learning_rate = model.lr_schedule = lambda _: 0.0
    model.learn(60)
    assert (model.replay_buffer.actions == 0).all()


def test_actors_know_how_far_the_run_is(monkeypatch):
    """Schedules and warm-up go by all transitions that were asked for, in their order, and not by those of one actor."""
    env = local(Tracked, 3, n_envs=2, in_flight=2)
    calls, ask = [], env.engine.ask
    monkeypatch.setattr(env.engine, "ask", lambda *args: calls.append(args) or ask(*args))
    model = small(PERDQN, env, learning_starts=0)
    model.learn(120)
    model.learn(30, reset_num_timesteps=False)
    assert [args[4] for args in calls if args[1] == "collect"] == list(range(0, 150, 10))


def columns_of(buffer: Any) -> list[dict[str, np.ndarray]]:
    """What each column holds, from the oldest step on."""
    columns = []
    for env, end in enumerate(buffer.column_steps):
        rows = np.arange(max(end - buffer.buffer_size, 0), end) % buffer.buffer_size
        names = ("observations", "next_observations", "rewards", "dones", "timeouts")
        columns.append({name: getattr(buffer, name)[rows, env] for name in names})
    return columns


def assert_columns_hold(buffer: Any) -> int:
    """Each step follows the one before it, or that one is an end; none is there twice. Returns the number of cuts."""
    n_cuts, seen = 0, Counter()
    for column in columns_of(buffer):
        obs, next_obs = column["observations"], column["next_observations"]
        np.testing.assert_array_equal(obs[:, :2], next_obs[:, :2])
        np.testing.assert_array_equal(next_obs[:, 2], obs[:, 2] + 1)
        np.testing.assert_array_equal(column["rewards"], next_obs[:, 2])
        seen.update(map(tuple, obs.tolist()))
        follows = (obs[1:] == next_obs[:-1]).all(axis=1)
        np.testing.assert_array_equal(follows, column["dones"][:-1] == 0)
        is_end = next_obs[:, 2] == 7
        assert (column["dones"][is_end] == 1).all() and (column["timeouts"][is_end] == 0).all()
        is_cut = (column["dones"] == 1) & ~is_end
        assert (column["timeouts"][is_cut] == 1).all()
        n_cuts += is_cut.sum()
    assert max(seen.values()) == 1
    return int(n_cuts)


@pytest.mark.parametrize("n_envs, chunk, buffer_size", [(1, 3, 1000), (2, 5, 1000), (3, 10, 90)])
def test_columns_are_what_their_actor_has_seen(n_envs, chunk, buffer_size):
    env = local(Tracked, 3, n_envs=n_envs, chunk=chunk, in_flight=2)
    model = small(PERDQN, env, buffer_size=buffer_size)
    model.learn(300)
    model.learn(60, reset_num_timesteps=False)
    assert assert_columns_hold(model.replay_buffer) == 0
    model.learn(60)  # the environments are reset
    assert_columns_hold(model.replay_buffer)


@pytest.mark.parametrize("buffer_size", [1000, 60])
def test_chunks_are_stored_when_they_come(buffer_size):
    """Ahead of the ticks that count their steps, by less than a chunk, and never by more than a fourth of a small buffer."""
    env = local(Tracked, 3, n_envs=2, chunk=10)
    model = small(PERDQN, env, buffer_size=buffer_size)
    ahead = []

    class Ahead(BaseCallback):
        def _on_step(self) -> bool:
            # SB3 calls it before what it has counted is stored.
            ahead.append(model.replay_buffer.column_steps.sum() - (self.num_timesteps - 6))
            if ahead[-1] > 0:
                assert_columns_hold(model.replay_buffer)
            return True

    model.learn(180, callback=Ahead())
    assert min(ahead) == 0 and model.replay_buffer.column_steps.sum() == 180
    assert 14 <= max(ahead) < 20 if buffer_size == 1000 else max(ahead) <= 4


def test_callbacks_see_a_policy_that_does_not_train():
    """As SB3 has it: a module may do something else while training."""
    model = small(PERDQN, local(Tracked))
    follower = StopAt(1000)
    follower.seen = set()
    follower._on_step = lambda: follower.seen.add(model.q_net.training) is None
    model.learn(60, callback=follower)
    assert follower.seen == {False}
    assert model._n_updates > 0 and model.policy.training


# ---- priorities


@pytest.mark.parametrize("name", sorted(CONFIGURATIONS.keys() - {"sac-ratio", "sac-sde"}))
def test_td_errors_of_actors_are_those_of_the_learner(name):
    """By the same weights, with the same random numbers, to the bit; n-step windows end with the chunk."""
    cls, env, kwargs = CONFIGURATIONS[name]
    env = local(env, 2, n_envs=2, chunk=5)
    model = small(cls, env, **kwargs)
    model.learn(60)
    for worker in env.engine.workers.values():
        model_copy.set_weights(worker.model, model_copy.published(model))
        th.manual_seed(0)
        of_actor = worker.state.td_errors()
        steps = worker.recorder.columns()
        del steps["infos"]
        buffer = type(model.replay_buffer)(
            10, model.observation_space, model.action_space, n_envs=2, n_steps=model.n_steps, gamma=model.gamma, device="cpu"
        )
        buffer.add_steps(np.arange(2), **steps)
        th.manual_seed(0)
        of_learner = model._td_errors(buffer._gather(np.arange(10), np.ones((10, 1), np.float32), None)).numpy()
        np.testing.assert_array_equal(of_actor.reshape(10, -1), of_learner)
        assert np.abs(of_actor).max() > 0


def test_target_networks_of_actors_are_the_learners(monkeypatch):
    """SB3 moves them while it collects; within a chunk, an actor's must not."""
    env = local(Tracked, 1, chunk=20)
    model = small(PERDQN, env, gradient_steps=0, target_update_interval=3)
    for parameter in model.q_net_target.parameters():
        parameter.data.add_(1.0)
    before = copy.deepcopy(model.policy.state_dict())
    chunks, next_chunk = [], env.crew.next_chunk
    monkeypatch.setattr(env.crew, "next_chunk", lambda: chunks.append(next_chunk()) or chunks[-1])
    model.learn(20)
    assert not th.equal(model.q_net_target.q_net[0].weight, before["q_net_target.q_net.0.weight"])
    model.policy.load_state_dict(before)
    batch = model.replay_buffer._gather(np.arange(20), np.ones((20, 1), np.float32), None)
    np.testing.assert_allclose(chunks[0].td_errors.ravel(), model._td_errors(batch).numpy().ravel(), rtol=1e-4)


def test_new_transitions_have_the_priorities_of_actors():
    """They do not raise the maximum; without an update, they are what the TD errors say."""
    env = local(Tracked, 2, chunk=10)
    model = small(PERDQN, env, gradient_steps=0)
    model.learn(40)
    buffer = model.replay_buffer
    assert buffer.max_priority == 1.0 and buffer.initial_priority == "max"
    leaves = np.arange(40)
    td_errors = model._td_errors(buffer._gather(leaves, np.ones((40, 1), np.float32), None)).numpy().ravel()
    np.testing.assert_allclose(buffer.priorities.ravel()[:40], (np.abs(td_errors) + 1e-6) ** 0.6, rtol=1e-4)


@pytest.mark.parametrize(
    "initial_priorities, kwargs, expected",
    [
        ("max", {}, 1.0),
        ("actor", dict(initial_priority="max"), 1.0),
        ("actor", dict(scheme="uniform"), 1.0),
        ("max", dict(initial_priority="td_error"), 1.0),
    ],
)
def test_new_transitions_have_the_largest_priority_where_it_was_asked_for(initial_priorities, kwargs, expected):
    model = small(PERDQN, local(Tracked, initial_priorities=initial_priorities), gradient_steps=0, replay_buffer_kwargs=kwargs)
    model.learn(40)
    assert (model.replay_buffer.priorities[:20] == expected).all()


def test_ladder():
    np.testing.assert_allclose(exploration_ladder(8), 0.4 ** (1 + 7 * np.arange(8) / 7))
    assert exploration_ladder(1) == [0.4]
    env = local(Tracked, 3, exploration="ladder")
    model = small(PERDQN, env, learning_starts=0)
    model.learn(60)
    rates = [env.engine.workers[actor].model.exploration_rate for actor in range(3)]
    np.testing.assert_allclose(rates, exploration_ladder(3))


# ---- seeds


def test_seeds_differ_between_actors_and_after_a_restart(monkeypatch):
    env = local(Unlucky, 3, n_envs=2, seed=5, env_kwargs=dict(lifetime=30), max_restarts=100)
    setups, ask = [], env.engine.ask
    monkeypatch.setattr(env.engine, "ask", lambda *args, **kwargs: setups.extend(args[4:5]) or ask(*args, **kwargs))
    model = small(PERDQN, env)
    model.learn(300)
    model.learn(300)
    starts = [setup for setup in setups if isinstance(setup, Setup)]
    assert len(starts) == len({setup.seed for setup in starts}) > 12
    assert len(set(model.replay_buffer.observations[0, :, 0])) == 6
    assert_columns_hold(model.replay_buffer)
    ready = [worker for worker in env.engine.workers.values() if worker.model is not None]
    assert len({worker.random_state[1][1].tobytes() for worker in ready}) == len(ready)


# ---- faults


def test_an_environment_that_raises_again_and_again():
    """The error itself, with the traceback of the actor, after three restarts without a chunk."""
    env = local(Unlucky, 2, env_kwargs=dict(lifetime=0))
    with pytest.raises(ArithmeticError, match="the environment is broken") as caught:
        small(PERDQN, env).learn(100)
    assert "tests/actor_envs.py" in str(caught.value.__cause__)
    assert env.crew.restarts == 6 and env.closed  # three of each
    with pytest.raises(ValueError, match="make_actors"):
        env.reset()


def test_an_environment_that_raises_now_and_then():
    env = local(Unlucky, 2, chunk=5, env_kwargs=dict(lifetime=17), max_restarts=100, in_flight=2)
    model = small(PERDQN, env, buffer_size=1000)
    model.learn(200)
    assert model.num_timesteps == 200 == model.replay_buffer.column_steps.sum()
    assert assert_columns_hold(model.replay_buffer) > 0
    assert env.crew.restarts > 5 and env.crew.lost_transitions >= 5 * env.crew.restarts


@pytest.mark.parametrize("max_restarts", [0, 2])
def test_restarts_have_an_end(max_restarts):
    env = local(Unlucky, 1, env_kwargs=dict(lifetime=17), max_restarts=max_restarts)
    with pytest.raises(ArithmeticError):
        small(PERDQN, env).learn(1000)
    assert env.crew.restarts == max_restarts


class Fragile(LocalEngine):
    """Answers get lost, and their actor with them."""

    def __init__(self, p: float, seed: int):
        super().__init__()
        self.p, self.rng = p, np.random.default_rng(seed)

    def answer(self, handle: Any) -> Any:
        answer = super().answer(handle)
        if handle.method == "collect" and not isinstance(answer, Failure) and self.rng.random() < self.p:
            raise ActorDiedError("killed")
        return answer

    def wait(self, handles: Any, timeout: float) -> Any:
        return handles[self.rng.integers(len(handles))]


def fragile(n_actors: int, p: float, seed: int, monkeypatch: Any, **kwargs: Any) -> Any:
    monkeypatch.setattr("sb3_per.distributed.crew.FRUITLESS_RESTARTS", 100)
    monkeypatch.setattr("sb3_per.distributed.make.LocalEngine", lambda: Fragile(p, seed))
    env = local(Tracked, n_actors, max_restarts=1000, **kwargs)
    object.__setattr__(env.crew.settings, "lockstep", False)
    return env


@pytest.mark.parametrize("seed", [0, 3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 4, 5))])
def test_lost_chunks(seed, monkeypatch):
    """Whatever dies whenever, in any order: the same end, no transition twice, and nothing joined that is not one."""
    n_envs, chunk = 1 + seed % 3, [1, 4, 9][seed // 2]
    env = fragile(3, 0.2, seed, monkeypatch, n_envs=n_envs, chunk=chunk, in_flight=2)
    model = small(PERDQN, env, buffer_size=5000, n_steps=1 + seed % 2)
    model.learn(211)
    buffer = model.replay_buffer
    assert model.num_timesteps == 211 == buffer.column_steps.sum()
    assert env.crew.restarts > 0 and env.crew.lost_transitions > 0
    assert_columns_hold(buffer)
    model.learn(50, reset_num_timesteps=False)
    assert_columns_hold(buffer)


class Silent(LocalEngine):
    """Nobody answers, and no process runs."""

    def has_started(self, actor: int) -> bool:
        return False

    def wait(self, handles: Any, timeout: float) -> Any:
        return None


def test_nobody_is_alive():
    engine = Silent()
    engine.start(0)
    crew = Crew(engine, 1, 1, CrewSettings(1, False, 3, 0.01))
    crew.begin(10, 5, lambda actor, is_restart: engine.ask(actor, "ask", "close"), lambda *args: None, lambda actor: None)
    with pytest.raises(NoActorAliveError, match=r"timeout=0\.01"):
        crew.next_chunk()


def test_somebody_is_alive_and_silent(monkeypatch):
    """A step that takes long is no error, but one is told, again and again, and whom it is waited for."""
    engine = LocalEngine()
    crew = Crew(engine, 1, 1, CrewSettings(1, False, 3, 3.0))
    engine.start(0)
    crew.begin(10, 5, lambda actor, is_restart: engine.ask(actor, "ask", "close"), lambda *args: None, lambda actor: None)
    answers = iter([None] * 30)
    monkeypatch.setattr(engine, "wait", lambda handles, timeout: next(answers, handles[0]))
    monkeypatch.setattr("time.monotonic", iter(range(100)).__next__)
    with pytest.warns(UserWarning, match=r"still starting.*\[0\]") as warned:
        crew._wait(list(crew._pending))
    assert [int(str(warning.message).split()[5]) for warning in warned] == [3, 6, 12, 24]


class StopAt(BaseCallback):
    """Returns False, or raises, after so many steps."""

    def __init__(self, n_calls: int, error: BaseException | None = None):
        super().__init__()
        self.stop_at, self.error = n_calls, error

    def _on_step(self) -> bool:
        if self.n_calls < self.stop_at:
            return True
        if self.error is not None:
            raise self.error
        return False


def test_callback_stops_and_training_goes_on():
    """What was under way is lost: the environments are reset, and nothing is joined across."""
    env = local(Tracked, 2, in_flight=2, chunk=7)
    model = small(PERDQN, env)
    model.learn(200, callback=StopAt(20))
    assert model.num_timesteps == 40 and not env.closed
    model.learn(100, reset_num_timesteps=False)
    assert model.num_timesteps == 140
    assert_columns_hold(model.replay_buffer)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_errors_stop_the_actors(error):
    env = local(Tracked)
    with pytest.raises(type(error)):
        small(PERDQN, env).learn(200, callback=StopAt(5, error))
    assert env.closed and env.engine.workers == {}


# ---- what is logged


def test_metrics_and_progress_bar(capsys):
    env = local(Tracked, 2, n_envs=2)
    model = small(PERDQN, env, verbose=1)
    model.learn(100, log_interval=4, progress_bar=True)
    shown = capsys.readouterr()
    for name in (
        "alive",
        "restarts",
        "lost_transitions",
        "lag_mean",
        "lag_max",
        "fps",
        "learner_idle",
        "samples_per_insert",
        "stale_updates",
    ):
        assert f" {name} " in shown.out, name
    assert "environment-bound" in shown.out or "learner-bound: more actors will not help" in shown.out
    assert "100/100" in (shown.out + shown.err).replace(" ", "")


@pytest.mark.parametrize("in_flight", [1, 2])
def test_lag(in_flight):
    """Updates between the weights that a chunk was collected with and its admission: as many as there are ticks in what is
    asked for of all actors, beside that chunk itself."""
    env = local(Tracked, 4, chunk=5, in_flight=in_flight)
    model = small(PERDQN, env, learning_starts=0, train_freq=1)
    lags = []
    from sb3_per.distributed.metrics import Metrics

    original = Metrics.lag
    Metrics.lag = lambda self, n: (lags.append(n), original(self, n))[1]
    try:
        model.learn(400)
    finally:
        Metrics.lag = original
    assert np.mean(lags[20:60]) == pytest.approx(5 * in_flight * 3 / 4 if in_flight == 1 else 5 * 7 / 4, abs=1.3)


# ---- what is refused


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(n_actors=0),
        dict(n_actors=1.5),
        dict(n_envs=0),
        dict(chunk=0),
        dict(chunk=True),
        dict(exploration="noise"),
        dict(initial_priorities="mean"),
        dict(max_restarts=-1),
        dict(max_restarts=0.5),
        dict(timeout=0),
        dict(timeout=float("inf")),
        dict(timeout=float("nan")),
        dict(engine="dask"),
        dict(in_flight=3),
        dict(lockstep="yes"),
        dict(engine="local", address="auto"),
        dict(env_id="NoSuchEnvironment-v0"),
        dict(env_id=3),
    ],
    ids=str,
)
def test_bad_input(kwargs, monkeypatch):
    """Names argument and value, and nothing was started."""
    monkeypatch.setattr("sb3_per.distributed.make._engine", lambda *args: pytest.fail("something was started"))
    arguments = {"env_id": "CartPole-v1", **kwargs}
    name = next(iter(kwargs)) if "address" not in kwargs else "address"
    with pytest.raises(ValueError, match=f"{name}.*{arguments[name]}"):
        make_actors(**arguments)


class _Goals(Tracked):
    pass


@pytest.mark.parametrize(
    "make, match",
    [
        (lambda env: small(PERDQN, local(env, 1), train_freq=(1, "episode")), "EPISODE"),
        (
            lambda env: PERRecurrentDQN("MlpLstmPolicy", local(env), buffer_size=2000, policy_kwargs=dict(lstm_hidden_size=4)),
            "sequences",
        ),
    ],
)
def test_what_does_not_go_together(make, match):
    with pytest.raises(NotImplementedError, match=match):
        make(Tracked)


def test_hindsight_is_refused():
    from stable_baselines3.common.envs import BitFlippingEnv

    with pytest.raises(NotImplementedError, match="HER"):
        small(PERDQN, local(BitFlippingEnv), "MultiInputPolicy", replay_buffer_class=PrioritizedHerReplayBuffer)


def test_ladder_needs_random_actions():
    with pytest.raises(ValueError, match="ladder"):
        small(PERSAC, local("Pendulum-v1", exploration="ladder"))


def test_wrappers_that_cannot_be_rebuilt(tmp_path):
    with pytest.raises(ValueError, match="monitor_dir"):
        small(PERDQN, VecMonitor(local(Tracked), str(tmp_path / "monitor.csv")))


def test_a_stock_algorithm_steps_them():
    model = DQN("MlpPolicy", local(Tracked, 2, n_envs=2), train_freq=1, learning_starts=10, buffer_size=100, batch_size=4)
    model.learn(60)
    assert model.num_timesteps == 60 and (model.replay_buffer.rewards != 0).any()


# ---- what is saved


def test_model_travels(tmp_path):
    """A zip that was written while actors acted is as any other."""
    env = local(Tracked)
    model = small(PERDQN, env)
    model.learn(60)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer.buffer")
    loaded = PERDQN.load(tmp_path / "model", env=local(Tracked))
    loaded.load_replay_buffer(tmp_path / "buffer.buffer")
    np.testing.assert_array_equal(loaded.replay_buffer.column_steps, model.replay_buffer.column_steps)
    loaded.env.seed(77)
    loaded.learn(60, reset_num_timesteps=False)
    assert loaded.num_timesteps == 120
    assert_columns_hold(loaded.replay_buffer)
    assert DQN.load(tmp_path / "model").num_timesteps == 60


def test_import_is_without_ray():
    code = "import sys, sb3_per, sb3_per.distributed; sys.exit('ray' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
