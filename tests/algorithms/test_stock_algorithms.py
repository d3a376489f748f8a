"""Uniform runs equal runs of the stock algorithms, and a stock algorithm with a prioritized buffer gives a warning."""

import itertools
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN, SAC

from sb3_per import PERDQN, PERSAC, PrioritizedOffPolicyMixin, PrioritizedReplayBuffer
from tests.helpers.buffers import counting_env
from tests.helpers.messages import caught_user_warnings, no_user_warnings
from tests.helpers.models import STOCK
from tests.helpers.stock_runs import differences, learned, made


@pytest.mark.parametrize("cls", STOCK)
@pytest.mark.parametrize("changes", [{}, dict(n_steps=3), dict(train_freq=4, gradient_steps=2)])
def test_a_uniform_run_equals_a_stock_run(cls, changes):
    """After a whole `learn()`, networks, optimizers, the entropy coefficient, rows and random numbers are equal to the bit."""
    assert differences(*(learned(made(each, **changes).learn(60)) for each in (cls, STOCK[cls]))) == []


def test_a_stock_algorithm_with_a_prioritized_buffer_warns_once():
    """It draws by priorities, but does not update them."""
    for cls, env, kwargs, complains in (
        (SAC, "Pendulum-v1", {}, True),
        (DQN, "CartPole-v1", dict(scheme="uniform"), False),
        (DQN, "CartPole-v1", dict(alpha=0.0), False),
    ):
        settings: dict[str, Any] = dict(learning_starts=5, batch_size=4, train_freq=1, policy_kwargs=dict(net_arch=[4]))
        model = cls("MlpPolicy", env, replay_buffer_class=PrioritizedReplayBuffer, replay_buffer_kwargs=kwargs, **settings)
        with caught_user_warnings() as caught:
            model.learn(40)
        said = [text for text in caught if "update_priorities() was not called" in text]
        assert len(said) == complains
        assert all("PERSAC for SAC" in text for text in said)


class OwnTraining(PERDQN):
    def train(self, gradient_steps: int, batch_size: int = 4) -> None:
        for _ in range(gradient_steps):
            self.replay_buffer.sample(batch_size)


class StockFirst(DQN, PrioritizedOffPolicyMixin):
    """In this order, the stock class trains."""


class CountsUpdates(PERDQN):
    def train(self, gradient_steps: int, batch_size: int | None = None) -> None:
        super().train(gradient_steps, batch_size)


def test_training_that_forgets_priorities_warns_once():
    small: dict[str, Any] = dict(learning_starts=5, batch_size=4, train_freq=1, policy_kwargs=dict(net_arch=[4]))
    for cls in (OwnTraining, StockFirst):
        model = cls("MlpPolicy", "CartPole-v1", **small)
        with pytest.warns(
            UserWarning, match=r"a train\(\) of your own.*update_priorities\(batch\.indices, td_errors\)"
        ) as caught:
            model.learn(30)
        assert len([w for w in caught if "update_priorities() was not called" in str(w.message)]) == 1
    with no_user_warnings():
        CountsUpdates("MlpPolicy", "CartPole-v1", **small).learn(30)
        OwnTraining("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(scheme="uniform"), **small).learn(30)
        PERSAC("MlpPolicy", "Pendulum-v1", **small).learn(30)


def test_a_second_learn_ends_the_episode_that_its_reset_leaves():
    """
    The stock class joins the two episodes. The end changes no target of a single step, also without
    `handle_timeout_termination`.
    """
    for resets, handles_timeouts in itertools.product((False, True), repeat=2):
        found = []
        for cls in (DQN, PERDQN):
            kwargs = dict(handle_timeout_termination=handles_timeouts)
            model = cls("MlpPolicy", counting_env(1), learning_starts=99, buffer_size=100, replay_buffer_kwargs=kwargs)
            for _ in range(2):
                model.learn(8, reset_num_timesteps=resets)
            buffer = model.replay_buffer
            found.append((np.flatnonzero(buffer.dones), np.flatnonzero(buffer.timeouts)))
            assert not buffer.dones[7, 0] * (1 - buffer.timeouts[7, 0])
        (stock_dones, stock_timeouts), (dones, timeouts) = found
        assert stock_dones.size == stock_timeouts.size == 0
        assert dones.tolist() == timeouts.tolist() == ([7] if resets else [])
