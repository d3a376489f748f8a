"""How transitions are counted, stored and shown to callbacks."""

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env

from sb3_per import PERDQN
from tests.distributed.envs import Tracked
from tests.distributed.helpers import Follower, StopAt, assert_columns_hold, local, small


@pytest.mark.parametrize("n_actors, n_envs, chunk, total", [(2, 1, 5, 100), (3, 2, 4, 101), (2, 3, 50, 7), (5, 1, 1, 33)])
def test_steps_are_counted_as_sb3_counts_them(n_actors, n_envs, chunk, total):
    """A callback is called after every ``num_envs`` transitions, and the run ends at ``total_timesteps``."""
    env = local(Tracked, n_actors, n_envs=n_envs, chunk=chunk)
    model, follower = small(PERDQN, env, train_freq=1, learning_starts=0), Follower()
    model.learn(total, callback=follower)
    assert model.num_timesteps == total == model.replay_buffer.ring.added.sum()
    assert [seen["num_timesteps"] for seen in follower.seen] == [*range(env.num_envs, total, env.num_envs), total]
    for name in ("rewards", "dones", "infos", "new_obs"):
        assert sum(len(seen[name]) for seen in follower.seen) == total
    n_episodes = sum(seen["dones"].sum() for seen in follower.seen)
    assert model._episode_num == n_episodes == sum("episode" in info for seen in follower.seen for info in seen["infos"])
    assert model._n_updates == len(follower.seen) == model._n_calls


@pytest.mark.parametrize("train_freq, gradient_steps, asked", [(1, 1, 1 / 4), (2, 3, 3 / 8), (1, -1, 1.0), (3, 0, 0.0)])
def test_updates_per_transition_equal_those_of_a_synchronous_run(train_freq, gradient_steps, asked):
    """``train_freq`` and ``gradient_steps`` mean the same as with ``SubprocVecEnv``."""
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


def test_warm_up_takes_learning_starts_transitions():
    """The first ``learning_starts`` transitions of all actors together are random."""
    model = small(
        PERDQN, local(Tracked, 3, in_flight=2), learning_starts=60, exploration_initial_eps=0.0, exploration_final_eps=0.0
    )
    for parameter in model.policy.parameters():
        parameter.data.zero_()  # so the first action is always the best
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


def test_actors_get_the_number_of_transitions_of_the_whole_run(monkeypatch):
    """Schedules and warm-up count the transitions of all actors, in the order of the calls."""
    env = local(Tracked, 3, n_envs=2, in_flight=2)
    calls, ask = [], env.engine.ask
    monkeypatch.setattr(env.engine, "ask", lambda *args, **kwargs: calls.append(args) or ask(*args, **kwargs))
    model = small(PERDQN, env, learning_starts=0)
    model.learn(120)
    model.learn(30, reset_num_timesteps=False)
    assert [args[4] for args in calls if args[1] == "collect"] == list(range(0, 150, 10))


@pytest.mark.parametrize("n_envs, chunk, buffer_size", [(1, 3, 1000), (2, 5, 1000), (3, 10, 90)])
def test_stored_steps_of_an_environment_follow_one_another(n_envs, chunk, buffer_size):
    env = local(Tracked, 3, n_envs=n_envs, chunk=chunk, in_flight=2)
    model = small(PERDQN, env, buffer_size=buffer_size)
    model.learn(300)
    model.learn(60, reset_num_timesteps=False)
    assert assert_columns_hold(model.replay_buffer) == 0
    model.learn(60)  # the environments are reset
    assert_columns_hold(model.replay_buffer)


@pytest.mark.parametrize("buffer_size", [1000, 60])
def test_chunks_are_stored_when_they_arrive(buffer_size):
    """The buffer is ahead of ``num_timesteps`` by less than a chunk, and by at most a fourth of a small buffer."""
    env = local(Tracked, 3, n_envs=2, chunk=10)
    model = small(PERDQN, env, buffer_size=buffer_size)
    ahead = []

    class Ahead(BaseCallback):
        def _on_step(self) -> bool:
            ahead.append(model.replay_buffer.ring.added.sum() - self.num_timesteps)
            assert_columns_hold(model.replay_buffer)
            return True

    model.learn(180, callback=Ahead())
    assert min(ahead) == 0 and model.replay_buffer.ring.added.sum() == 180
    assert 14 <= max(ahead) < 20 if buffer_size == 1000 else max(ahead) <= 4


def test_callbacks_see_the_policy_in_evaluation_mode():
    """SB3 does the same, because dropout and batch norm behave differently in training mode."""
    model = small(PERDQN, local(Tracked))
    follower = StopAt(1000)
    follower.seen = set()
    follower._on_step = lambda: follower.seen.add(model.q_net.training) is None
    model.learn(60, callback=follower)
    assert follower.seen == {False}
    assert model._n_updates > 0 and model.policy.training


def test_training_can_continue_after_a_callback_stopped_it():
    """Pending steps are dropped, the environments are reset, and no episode continues across the gap."""
    env = local(Tracked, 2, in_flight=2, chunk=7)
    model = small(PERDQN, env)
    model.learn(200, callback=StopAt(20))
    assert model.num_timesteps == 40 and not env.crew.closed
    model.learn(100, reset_num_timesteps=False)
    assert model.num_timesteps == 140
    assert_columns_hold(model.replay_buffer)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ZeroDivisionError()])
def test_errors_stop_the_actors(error):
    env = local(Tracked)
    with pytest.raises(type(error)):
        small(PERDQN, env).learn(200, callback=StopAt(5, error))
    assert env.crew.closed and env.engine.workers == {}


def test_acting_environments_cannot_be_reset_or_stepped():
    """Otherwise, stored transitions would not follow one another."""
    env = local(Tracked)

    class Meddle(BaseCallback):
        def _on_step(self) -> bool:
            for use in (env.reset, lambda: env.step(np.zeros(2, int))):
                with pytest.raises(ValueError, match="while an algorithm learns"):
                    use()
            return True

    small(PERDQN, env).learn(20, callback=Meddle())


def test_metrics_and_progress_bar_are_shown(capsys):
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
def test_lag_is_bounded_by_the_calls_in_flight(in_flight):
    """
    The lag of a chunk is the number of updates since its weights were sent. The learner updates while it uses the other
    pending chunks.
    """
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
