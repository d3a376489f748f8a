"""PriorityMonitor and plots show the same numbers as counting by hand, and do not change a run."""

import pickle
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.logger import configure

from sb3_per import PERDQN, PrioritizedHerReplayBuffer, PrioritizedReplayBuffer, PriorityMonitor
from sb3_per.monitoring.monitor import DrawRecord, statistics
from sb3_per.monitoring.plots import plot_buffer
from tests.helpers.buffers import fill, make_buffer
from tests.helpers.messages import caught_user_warnings

HISTOGRAMS = {"per/priorities", "per/weights", "per/age"}
SCALARS = {"per/never_drawn", "per/buffer_effective_sample_size"}


def written(folder: Any) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(next(folder.glob("*_1"))), size_guidance={"histograms": 0, "scalars": 0})
    events.Reload()
    return events


@pytest.mark.parametrize(
    "n_envs, kwargs", [(1, dict(optimize_memory_usage=True, handle_timeout_termination=False)), (2, dict(obs_space="dict"))]
)
def test_draws_are_counted_per_transition(n_envs, kwargs):
    """The count of a slot starts at 0 for each new transition, after any number of laps."""
    buffer = make_buffer(n_rows=10, n_envs=n_envs, **kwargs)
    fill([buffer], 3)
    buffer.sample(8)  # not counted yet
    buffer.draw_record = DrawRecord(10 * n_envs, n_batches=3)
    by_hand: Counter[int] = Counter()
    for n_steps in (1, 4, 2, 25, 3):
        fill([buffer], n_steps, seed=n_steps)
        batches = [buffer.sample(16) for _ in range(3)]
        for batch in batches:
            by_hand.update(batch.indices.tolist())
        ids = buffer.transition_ids
        stored = ids[ids >= 0]
        next_id = ids.max() + 1
        assert sorted(stored) == list(range(max(next_id - 10 * n_envs, 0), next_id))
        np.testing.assert_array_equal(buffer.draw_record.counts(stored), [by_hand[i] for i in stored])

        histograms, scalars = statistics(buffer)
        masses = buffer.masses[buffer.masses > 0]
        np.testing.assert_array_equal(np.sort(histograms["priorities"]), np.sort(masses))
        np.testing.assert_array_equal(histograms["weights"], th.cat([batch.weights for batch in batches]).flatten())
        np.testing.assert_array_equal(histograms["age"], np.concatenate([next_id - 1 - batch.indices for batch in batches]))
        drawable = ids[buffer.masses > 0]
        assert scalars["never_drawn"] == pytest.approx(np.mean([by_hand[i] == 0 for i in drawable]))
        assert scalars["buffer_effective_sample_size"] == pytest.approx(masses.sum() ** 2 / (masses**2).sum() / masses.size)
        buffer.update_priorities(batches[0].indices, np.random.default_rng(0).exponential(size=16))


def test_transition_ids_name_the_transition_in_each_slot():
    buffer = make_buffer(n_rows=4, n_envs=3)
    for step in range(11):
        expected = np.full((4, 3), -1)
        for earlier in range(step):
            expected[earlier % 4] = earlier * 3 + np.arange(3)
        np.testing.assert_array_equal(buffer.transition_ids, expected)
        fill([buffer], 1)
    buffer.reset()
    assert (buffer.transition_ids == -1).all()


def test_statistics_of_a_large_buffer_use_part_of_its_slots():
    buffer = make_buffer(n_rows=200)
    fill([buffer], 200)
    buffer.update_priorities(np.arange(200), np.arange(200.0))
    histograms, scalars = statistics(buffer, max_transitions=20)
    np.testing.assert_array_equal(histograms["priorities"], buffer.masses[::10, 0])
    assert scalars.keys() == {"buffer_effective_sample_size"}  # nothing was counted
    assert statistics(make_buffer()) == ({}, {})


def test_effective_sample_size_of_huge_masses_is_finite():
    buffer = make_buffer(n_rows=4, alpha=1.0)
    fill([buffer], 4)
    buffer.update_priorities(np.arange(4), np.array([1e200, 1e200, 1e200, 1e200]))
    assert statistics(buffer)[1]["buffer_effective_sample_size"] == pytest.approx(1.0)


def test_tensorboard_shows_histograms_and_scalars(tmp_path):
    kwargs: dict[str, Any] = dict(policy_kwargs=dict(net_arch=[8]), batch_size=8, learning_starts=20, train_freq=1)
    model = PERDQN("MlpPolicy", "CartPole-v1", tensorboard_log=str(tmp_path), **kwargs)
    model.learn(200, callback=PriorityMonitor(interval=60))
    events = written(tmp_path)
    assert HISTOGRAMS <= set(events.Tags()["histograms"])
    assert SCALARS <= set(events.Tags()["scalars"])
    for name in HISTOGRAMS:
        assert [event.step for event in events.Histograms(name)] == [60, 120, 180]
    for name in SCALARS:
        assert [event.step for event in events.Scalars(name)] == [60, 120, 180]
        assert all(0 < event.value <= 1 for event in events.Scalars(name))
    last = events.Histograms("per/age")[-1].histogram_value
    assert 0 <= last.min and last.max < 180 and last.num == 100 * 8
    # SB3 asks its callbacks before it stores the step.
    assert events.Histograms("per/priorities")[-1].histogram_value.num == 179


def test_monitor_works_with_hindsight(tmp_path):
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4), n_envs=2)
    model = PERDQN(
        "MultiInputPolicy",
        env,
        replay_buffer_class=PrioritizedHerReplayBuffer,
        buffer_size=1_000,
        learning_starts=50,
        tensorboard_log=str(tmp_path),
    )
    model.learn(100, callback=PriorityMonitor(interval=80))
    events = written(tmp_path)
    assert HISTOGRAMS <= set(events.Tags()["histograms"]) and SCALARS <= set(events.Tags()["scalars"])


def test_the_monitor_does_not_change_training(tmp_path):
    def trained(callback: Any, log: Any) -> Any:
        kwargs: dict[str, Any] = dict(policy_kwargs=dict(net_arch=[8]), batch_size=8, seed=0, tensorboard_log=log)
        model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=30, train_freq=1, **kwargs)
        return model.learn(100, callback=callback)

    monitored, plain = trained(PriorityMonitor(interval=20), str(tmp_path)), trained(None, None)
    for ours, theirs in zip(monitored.policy.parameters(), plain.policy.parameters(), strict=True):
        assert th.equal(ours, theirs)
    np.testing.assert_array_equal(monitored.replay_buffer.masses, plain.replay_buffer.masses)

    # The count is saved with the buffer and continues in the next run.
    again = pickle.loads(pickle.dumps(monitored.replay_buffer))
    ids = again.transition_ids[:100]
    counts = again.draw_record.counts(ids)
    np.testing.assert_array_equal(counts, monitored.replay_buffer.draw_record.counts(ids))
    assert counts.sum() == (100 - 30) * 8
    monitored.learn(40, callback=PriorityMonitor(interval=20), reset_num_timesteps=False)
    assert monitored.replay_buffer.draw_record.counts(monitored.replay_buffer.transition_ids[:140]).sum() == (140 - 30) * 8


class Counting(PrioritizedReplayBuffer):
    """Counts how often its priorities are asked for."""

    n_asked = 0

    @property
    def masses(self) -> np.ndarray:
        type(self).n_asked += 1
        return super().masses


def test_without_an_output_nothing_is_computed_and_a_warning_says_so(tmp_path):
    for log in (None, str(tmp_path)):
        Counting.n_asked = 0
        model = PERDQN("MlpPolicy", "CartPole-v1", replay_buffer_class=Counting, buffer_size=100, tensorboard_log=log)
        with caught_user_warnings() as caught:
            model.learn(50, callback=PriorityMonitor(interval=10))
        assert (Counting.n_asked > 0) == (log is not None)
        warned = [text for text in caught if re.search(r"nowhere to write.*tensorboard_log.*verbose=1", text)]
        assert len(warned) == (log is None) and len(caught) == len(warned)


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="-5"):
        PriorityMonitor(interval=-5)
    with pytest.raises(ValueError, match="ReplayBuffer"):
        SAC("MlpPolicy", "Pendulum-v1", buffer_size=100).learn(10, callback=PriorityMonitor())
    with pytest.raises(ValueError, match="nothing to plot"):
        plot_buffer(make_buffer())
    with pytest.raises(TypeError, match=r"plot_buffer\(\) takes a prioritized buffer .* not a list"):
        plot_buffer([1, 2])


def test_the_plot_shows_medians_by_age(tmp_path):
    buffer = make_buffer(n_rows=100, alpha=1.0, epsilon=1e-9)
    fill([buffer], 130)
    # Older transitions have larger priorities, and each is drawn as often as its age in tens.
    ids = np.arange(30, 130)
    buffer.update_priorities(ids, 130.0 - ids)
    assert len(plot_buffer(buffer).axes) == 1
    buffer.draw_record = DrawRecord(100)
    buffer.draw_record.add(np.repeat(ids, (129 - ids) // 10), th.ones(1, 1), 130)
    figure = plot_buffer(buffer, n_bins=20)
    assert len(figure.axes) == 2
    for axis, of_age in zip(figure.axes, (lambda age: age + 1.0, lambda age: age // 10), strict=False):
        (median,) = axis.get_lines()
        ages = np.arange(100)[::-1].reshape(20, 5)
        np.testing.assert_allclose(median.get_xdata(), ages.mean(axis=1))
        np.testing.assert_allclose(median.get_ydata(), [np.median(of_age(group)) for group in ages], rtol=1e-6)
    figure.savefig(tmp_path / "buffer.png")
    assert (tmp_path / "buffer.png").stat().st_size > 1000


def test_the_part_of_a_large_buffer_covers_all_environments():
    """So the stride is never a multiple of the number of environments."""
    n_envs, max_transitions = 4, 50  # every 24th of 1200 would be one of the same environment
    buffer = make_buffer(n_rows=300, n_envs=n_envs)
    fill([buffer], 300)
    buffer.update_priorities(np.arange(300 * n_envs), np.arange(300 * n_envs) % n_envs + 1.0)
    counts = Counter(statistics(buffer, max_transitions)[0]["priorities"].round(6).tolist())
    assert len(counts) == n_envs
    assert max(counts.values()) - min(counts.values()) <= 1
    assert 0.4 * max_transitions < sum(counts.values()) <= max_transitions


def test_a_record_begins_anew_with_arrays_of_another_size():
    """Else the slots of new transitions would stand for those of other ones."""
    buffer = make_buffer(n_rows=4)
    fill([buffer], 4)
    buffer.draw_record = DrawRecord(4, n_batches=10)
    buffer.sample(4)
    larger = make_buffer(n_rows=16)
    for name in ("observations", "next_observations", "actions", "rewards", "dones", "timeouts", "buffer_size", "pos", "full"):
        setattr(buffer, name, getattr(larger, name))
    fill([buffer], 16)
    drawn = Counter(np.concatenate([buffer.sample(16).indices for _ in range(5)]).tolist())
    ids = buffer.transition_ids.ravel()
    np.testing.assert_array_equal(buffer.draw_record.counts(ids), [drawn[i] for i in ids.tolist()])
    assert buffer.draw_record.batches.maxlen == 10


def test_a_record_holds_arrays_and_no_tensors():
    """So a buffer from a GPU can be loaded without one, and changing a batch does not change the record."""
    buffer = make_buffer(n_rows=10)
    fill([buffer], 10)
    buffer.draw_record = DrawRecord(10)
    buffer.update_priorities(np.arange(10), np.arange(10.0))
    batch = buffer.sample(5)
    expected = batch.weights.numpy().copy()
    batch.weights.zero_()
    ((ids, weights, _),) = buffer.draw_record.batches
    assert type(ids) is type(weights) is np.ndarray
    np.testing.assert_array_equal(weights, expected)
    assert b"torch" not in pickle.dumps(buffer.draw_record)


def test_outputs_without_histograms_show_quantiles(tmp_path, capsys):
    model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=20, buffer_size=200, batch_size=8, seed=0)
    model.set_logger(configure(str(tmp_path), ["csv", "stdout"]))
    model.learn(100, callback=PriorityMonitor(interval=25), log_interval=1)
    found = dict(model.logger.name_to_value)
    model.logger.close()
    for text in (capsys.readouterr().out, (tmp_path / "progress.csv").read_text()):
        for name in ("never_drawn", "buffer_effective_sample_size", "priorities_p50", "weights_p05", "age_p95"):
            assert name in text
    assert all(np.isfinite(value) for name, value in found.items() if name.startswith("per/"))


def test_a_model_can_be_plotted():
    model = PERDQN("MlpPolicy", "CartPole-v1", learning_starts=20, buffer_size=200, batch_size=8).learn(60)
    assert len(plot_buffer(model).axes) == 1
