"""How transitions are counted, stored, logged and shown to callbacks."""

import random
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.logger import KVWriter, Logger

from sb3_per import PERDQN
from sb3_per.distributed.chunks import Chunk
from sb3_per.distributed.engines import LocalEngine
from tests.helpers.actor_envs import Tracked
from tests.helpers.actors import Follower, Listening, StopAt, assert_rows_hold, local, on_engine, small

pytestmark = pytest.mark.usefixtures("one_thread")


def test_steps_are_counted_as_sb3_counts_them():
    """A callback is called after every ``num_envs`` transitions, and the run ends at ``total_timesteps``."""
    for n_actors, n_envs, chunk, total in ((3, 2, 4, 101), (2, 3, 50, 7)):
        env = local(Tracked, n_actors, n_envs=n_envs, chunk=chunk)
        model, follower = small(PERDQN, env, train_freq=1, learning_starts=0), Follower()
        model.learn(total, callback=follower)
        assert model.num_timesteps == total == model.replay_buffer.numbering.next_id
        assert [seen["num_timesteps"] for seen in follower.seen] == [*range(env.num_envs, total, env.num_envs), total]
        for name in ("rewards", "dones", "infos", "new_obs"):
            assert sum(len(seen[name]) for seen in follower.seen) == total
        # A chunk that is cut short at the end of the run: the same transitions are stored as shown.
        stored = model.replay_buffer.next_observations[:total, 0]
        shown = np.concatenate([seen["new_obs"] for seen in follower.seen])
        np.testing.assert_array_equal(np.unique(stored, axis=0), np.unique(shown, axis=0))
        n_episodes = sum(seen["dones"].sum() for seen in follower.seen)
        assert model._episode_num == n_episodes == sum("episode" in info for seen in follower.seen for info in seen["infos"])
        assert model._n_updates == len(follower.seen) == model._n_calls


class Recorder(KVWriter):
    """Keep each line of the log."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def write(self, key_values: dict[str, Any], key_excluded: Any, step: int = 0) -> None:
        self.lines.append(dict(key_values))

    def close(self) -> None:
        pass


def logged(model: Any, n_steps: int, callback: Any = None) -> list[dict[str, Any]]:
    """Train, and return a line of the log for each episode."""
    recorder = Recorder()
    model.set_logger(Logger(None, [recorder]))
    model.learn(n_steps, callback=callback, log_interval=1)
    return recorder.lines


@pytest.mark.parametrize("train_freq, gradient_steps, asked", [(2, 3, 3 / 8), (1, -1, 1.0)])
def test_updates_per_transition_equal_those_of_a_synchronous_run(train_freq, gradient_steps, asked):
    """``train_freq`` and ``gradient_steps`` mean the same as with ``SubprocVecEnv``."""
    kwargs = dict(train_freq=train_freq, gradient_steps=gradient_steps, learning_starts=24)
    synchronous = small(PERDQN, make_vec_env(Tracked, n_envs=4), **kwargs)
    synchronous.learn(160)
    model = small(PERDQN, local(Tracked, 4, in_flight=2), **kwargs)
    lines = logged(model, 160)
    assert model._n_updates == synchronous._n_updates
    # A batch has 8 transitions. At the last line, updates for the last step of all environments are still due.
    assert lines[-1]["replay/samples_per_insert"] == pytest.approx(8 * asked, rel=0.05)


class Lags(Listening):
    """Measure each lag when its chunk arrives: the updates since the weights were sent."""

    model: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.lags: list[int] = []

    def answer(self, handle: Any) -> Any:
        n_before = len(self.chunks)
        answer = super().answer(handle)
        if len(self.chunks) > n_before:
            self.lags.append(self.model._n_updates - answer.version)
        return answer


def test_the_log_has_the_mean_and_the_largest_lag_since_the_line_before():
    """The learner makes an update for the steps of each pending chunk, so the lag is bounded by the calls in flight."""
    in_flight = 2
    engine = Lags()
    engine.model = small(PERDQN, on_engine(engine, 4, in_flight=in_flight), learning_starts=0, train_freq=1)
    at_line: list[int] = []

    class Mark(BaseCallback):
        def _on_step(self) -> bool:
            at_line.extend([len(engine.lags)] * int(self.locals["dones"].sum()))
            return True

    lines = logged(engine.model, 320, Mark())
    n_different = 0
    for line, begin, end in zip(lines, [0, *at_line[:-1]], at_line, strict=True):
        lags = engine.lags[begin:end]
        if lags:
            assert line["actors/lag_max"] == max(lags)
            assert line["actors/lag_mean"] == pytest.approx(np.mean(lags))
            n_different += max(lags) > min(lags)
    assert n_different > 0
    # Of each actor, as many chunks of 5 steps are pending as it has calls in flight; 4 steps are due an update.
    assert np.mean(engine.lags[20:60]) == pytest.approx(5 * (4 * in_flight - 1) / 4, abs=1.3)


def test_the_log_counts_actors_and_updates(capsys):
    model = small(PERDQN, local(Tracked, 2, n_envs=2), learning_starts=0, train_freq=1)
    lines = logged(model, 100)
    last = lines[-1]
    assert (last["actors/alive"], last["actors/restarts"], last["actors/lost_transitions"]) == (2, 0, 0)
    assert last["actors/bound"] == "learner-bound" and 0 <= last["time/learner_idle"] < 0.1
    assert max(line["actors/fps"] for line in lines) > 0
    assert last["replay/stale_updates"] == model.n_stale_updates
    small(PERDQN, local(Tracked), verbose=1).learn(40)
    assert "learner-bound: more actors will not help" in capsys.readouterr().out


def test_the_progress_bar_counts_transitions(capsys):
    pytest.importorskip("rich", reason="needs the extra extra")
    small(PERDQN, local(Tracked)).learn(40, progress_bar=True)
    shown = capsys.readouterr()
    assert "40/40" in (shown.out + shown.err).replace(" ", "")


def test_warm_up_takes_learning_starts_transitions():
    """The first ``learning_starts`` transitions of all actors together are random. The policy always takes action 0."""
    rates = dict(exploration_initial_eps=0.0, exploration_final_eps=0.0)
    model = small(PERDQN, local(Tracked, 3, in_flight=2), learning_starts=60, gradient_steps=0, **rates)
    for parameter in model.policy.parameters():
        parameter.data.zero_()
    model.learn(120)
    actions = model.replay_buffer.actions[:120]
    assert 15 < (actions[:60] == 1).sum() < 45
    assert (actions[60:] == 0).all()


def test_stored_steps_of_an_environment_follow_one_another():
    env = local(Tracked, 3, n_envs=3, chunk=10, in_flight=2)
    model = small(PERDQN, env, buffer_size=90)
    model.learn(300)
    model.learn(60, reset_num_timesteps=False)
    assert assert_rows_hold(model.replay_buffer) <= env.num_envs
    model.learn(60)  # the environments are reset
    assert_rows_hold(model.replay_buffer)


def test_chunks_are_stored_when_they_arrive():
    """The buffer is ahead of ``num_timesteps`` by less than a chunk, and by at most a fourth of a small buffer."""

    class Ahead(BaseCallback):
        def _on_training_start(self) -> None:
            self.ahead: list[int] = []

        def _on_step(self) -> bool:
            self.ahead.append(self.model.replay_buffer.numbering.next_id - self.num_timesteps)
            assert_rows_hold(self.model.replay_buffer)
            return True

    for buffer_size, least, most in ((1000, 14, 19), (60, 1, 4)):
        model = small(PERDQN, local(Tracked, 3, n_envs=2, chunk=10), buffer_size=buffer_size)
        callback = Ahead()
        model.learn(180, callback=callback)
        assert min(callback.ahead) == 0 and model.replay_buffer.numbering.next_id == 180
        assert least <= max(callback.ahead) <= most


class Chosen(LocalEngine):
    """Answer in another order, but of each actor in the order of its calls."""

    def __init__(self, choose: Any):
        super().__init__()
        self.choose = choose

    def wait(self, handles: Any, timeout: float) -> Any:
        return self.choose(list(handles))


def n_steps(handle: Any) -> float:
    """Count the steps of an answer; an actor that is ready comes before all chunks."""
    answer = handle.result()
    return answer.steps["rewards"].size if isinstance(answer, Chunk) else np.inf


@pytest.mark.parametrize(
    "choose",
    [random.Random(0).choice, lambda handles: handles[-1], lambda handles: max(handles, key=n_steps)],
    ids=["random", "last actor first", "shortest chunk last"],
)
def test_every_step_is_stored_once_in_whatever_order_chunks_arrive(choose):
    """The run ends in the middle of the chunk that comes last, which may have a single step of each environment."""
    env = on_engine(Chosen(choose), 3, n_envs=2, lockstep=False, in_flight=2)
    model = small(PERDQN, env, buffer_size=2000)
    model.learn(301)
    assert model.num_timesteps == 301 == model.replay_buffer.numbering.next_id
    assert assert_rows_hold(model.replay_buffer) <= env.num_envs
    assert model._n_updates == 13  # one for each 24 transitions, and one for the rest


def test_callbacks_see_the_policy_in_evaluation_mode():
    """SB3 does the same, because dropout and batch norm behave differently in training mode."""
    modes = set()

    class Mode(BaseCallback):
        def _on_step(self) -> bool:
            modes.add(self.model.q_net.training)
            return True

    model = small(PERDQN, local(Tracked))
    model.learn(60, callback=Mode())
    assert modes == {False}
    assert model._n_updates > 0 and model.policy.training


def test_training_can_continue_after_a_callback_stopped_it():
    """Pending steps are dropped, the environments are reset, and no episode continues across the gap."""
    env = local(Tracked, 2, in_flight=2, chunk=7)
    model = small(PERDQN, env)
    model.learn(200, callback=StopAt(20))
    assert model.num_timesteps == 40 and not env.pool.closed
    model.learn(100, reset_num_timesteps=False)
    assert model.num_timesteps == 140
    assert_rows_hold(model.replay_buffer)


def test_an_error_in_a_callback_stops_the_actors():
    env = local(Tracked)
    with pytest.raises(KeyboardInterrupt):
        small(PERDQN, env).learn(200, callback=StopAt(5, KeyboardInterrupt()))
    assert env.pool.closed and env.engine.workers == {}


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
