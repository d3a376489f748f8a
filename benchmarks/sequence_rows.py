"""Rows of the benchmark about sequences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch as th
from stable_baselines3.common.buffers import ReplayBuffer
from stable_baselines3.common.utils import polyak_update
from timing import MILLION, Row, Rows, box, compare, filled

from sb3_per import PERRecurrentDQN, PERRecurrentSAC, PrioritizedReplayBuffer, PrioritizedSequenceReplayBuffer
from sb3_per.algorithms.optimizers import minimise

_SPACES = box(17), box(6)

# 20 steps of burn-in and 40 that are learned, with 5-step returns: 65 observations of each window.
_SETTINGS: dict[str, Any] = dict(sequence_length=40, burn_in=20, n_steps=5, state_shapes=((1, 64), (1, 64)))
_WINDOWS, _ROWS = 32, 32 * 65


def _full(size: int) -> PrioritizedSequenceReplayBuffer:
    """Fill a buffer with episodes of 200 steps."""
    buffer = PrioritizedSequenceReplayBuffer(size, *_SPACES, "cpu", **_SETTINGS)
    buffer.observations[:] = buffer.next_observations[:] = 1
    buffer.dones[199::200] = 1
    # Rows are written by hand, which is faster than `add`. So the ring and the windows must be told.
    buffer.ring.advance(None, buffer.buffer_size)
    buffer.windows.load({}, False)
    return buffer


def _cycle(buffer: PrioritizedSequenceReplayBuffer) -> Callable[[], None]:
    td_errors = th.randn(40, _WINDOWS)

    def run() -> None:
        batch = buffer.sample(_WINDOWS)
        buffer.update_priorities(batch.indices, td_errors, batch.mask)

    return run


def _add(buffer: Any, **kwargs: Any) -> Callable[[], None]:
    obs, action, zeros, infos = np.zeros((1, 17), np.float32), np.zeros((1, 6), np.float32), np.zeros(1), [{}]
    return lambda: buffer.add(obs, obs, action, zeros, zeros, infos, **kwargs)


def _gradient_step_row(algorithm: Any, env: str, quick: bool) -> Row:
    """
    Compare a gradient step with its bare parts: forward and backward passes of LSTMs and heads over prefixes and windows of
    the same shapes, without padding, and the optimizers.
    """
    settings = {name: _SETTINGS[name] for name in ("sequence_length", "burn_in", "n_steps")}
    model = algorithm("MlpLstmPolicy", env, **settings, learning_starts=3_000, seed=0, policy_kwargs=dict(lstm_hidden_size=64))
    model.learn(3_000)
    batch = model.replay_buffer.sample(_WINDOWS)
    n_features = batch.observations.shape[2]
    window, prefix = th.randn(45, _WINDOWS, n_features), th.randn(20, _WINDOWS, n_features)
    states = (th.randn(1, _WINDOWS, 64), th.randn(1, _WINDOWS, 64))
    steps = slice(0, 40 * _WINDOWS)
    actions = batch.actions.flatten(0, 1)

    def unroll(network: Any) -> th.Tensor:
        lstm = network.lstm
        with th.no_grad():
            after = lstm(prefix, states)[1]
        outputs = lstm(window, after)[0]
        joined = th.cat([outputs, window], dim=2) if network.features_pass_memory else outputs
        return joined.flatten(0, 1)

    def bare_dqn() -> None:
        with th.no_grad():
            model.q_net_target.q_net(unroll(model.q_net_target))
        minimise(model.q_net.q_net(unroll(model.q_net))[steps].square().mean(), model.policy.optimizer, model.max_grad_norm)

    def critic_values(network: Any, of_windows: th.Tensor, of_actions: th.Tensor) -> th.Tensor:
        inputs = th.cat([of_windows[steps], of_actions], dim=1)
        return th.cat([q_net(inputs) for q_net in network.q_networks], dim=1)

    def bare_sac() -> None:
        features = unroll(model.actor)
        chosen = model.actor.action_log_prob(features[steps])[0]
        with th.no_grad():
            next_actions = model.actor.action_log_prob(features[-steps.stop :])[0]
            critic_values(model.critic_target, unroll(model.critic_target), next_actions)
        minimise(critic_values(model.critic, unroll(model.critic), actions).square().mean(), model.critic.optimizer)
        with th.no_grad():
            of_windows = unroll(model.critic)
        values = critic_values(model.critic, of_windows, chosen)
        minimise(-values.mean(), model.actor.optimizer)
        polyak_update(model.critic.parameters(), model.critic_target.parameters(), model.tau)

    what, bare = (
        f"gradient step, {algorithm.__name__}, 32 windows of 65 rows",
        bare_sac if hasattr(model, "actor") else bare_dqn,
    )
    rounds = 3 if quick else 15
    return compare(what, "its bare networks and optimizers", 1.15, lambda: model._gradient_step(batch, 0), bare, 20, rounds)


def sequence_rows(quick: bool) -> Rows:
    """Measure draws and updates of windows, and the cost of their states in `add`."""
    size, large = (100_000, MILLION) if quick else (MILLION, 10 * MILLION)

    def sample_row() -> Row:
        stock = filled(ReplayBuffer(size, *_SPACES, "cpu"))
        what = f"sample + update of {_WINDOWS} windows of 65 rows"
        return compare(what, f"SB3 sample({_ROWS})", 1.0, _cycle(_full(size)), lambda: stock.sample(_ROWS), 100)

    def size_row() -> Row:
        what = f"the same, {large // MILLION}M transitions"
        return compare(what, "10k transitions", 3.0, _cycle(_full(large)), _cycle(_full(10_000)), 100)

    def add_row() -> Row:
        states = (np.zeros((1, 1, 64), np.float32),) * 2
        ours = _add(_full(100_000), episode_starts=np.zeros(1, np.bool_), states=states)
        theirs = _add(PrioritizedReplayBuffer(100_000, *_SPACES, "cpu", n_steps=5))
        return compare("add, sequences with states of 64", "PrioritizedReplayBuffer", 1.5, ours, theirs, 2000)

    yield "sequences sample", sample_row
    yield "sequences size", size_row
    yield "sequences add", add_row
    yield "sequences step dqn", lambda: _gradient_step_row(PERRecurrentDQN, "CartPole-v1", quick)
    yield "sequences step sac", lambda: _gradient_step_row(PERRecurrentSAC, "Pendulum-v1", quick)
