"""A run that was stopped and resumed equals a run that was not stopped."""

import copy
from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import (
    PERDQN,
    PERQRDQN,
    PERSAC,
    PERTD3,
    PERTQC,
    BufferCheckpointCallback,
    PrioritizedHerReplayBuffer,
)
from tests.helpers.project import ROOT, benchmark
from tests.helpers.saved import assert_same, snapshot


def seed_all(seed: int) -> None:
    np.random.seed(seed)
    th.manual_seed(seed)


def parameters(model: Any) -> list[np.ndarray]:
    state = [*model.policy.state_dict().values()]
    optimizers = [part for part in vars(model.policy).values() if hasattr(part, "optimizer")]
    for part in optimizers:
        state += [value for entry in part.optimizer.state_dict()["state"].values() for value in entry.values()]
    return [np.asarray(value) for value in state]


RUNS: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "SAC": (PERSAC, "Pendulum-v1", {}),
    "SAC, rank, uniform actor": (
        PERSAC,
        "Pendulum-v1",
        dict(replay_buffer_kwargs=dict(scheme="rank", actor_batch="uniform")),
    ),
    "TD3, LAP": (PERTD3, "Pendulum-v1", dict(replay_buffer_kwargs=dict(scheme="lap"))),
    "TQC, 3 steps, recency": (PERTQC, "Pendulum-v1", dict(n_steps=3, replay_buffer_kwargs=dict(recency=0.99, recency_min=10))),
    "DQN, beta by number of draws": (PERDQN, "CartPole-v1", dict(replay_buffer_kwargs=dict(beta_anneal_steps=100))),
    "DQN, optimize_memory_usage": (
        PERDQN,
        "CartPole-v1",
        dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False, unique=True)),
    ),
    "QRDQN": (PERQRDQN, "CartPole-v1", {}),
    "DQN, HER": (PERDQN, "bits", dict(replay_buffer_class=PrioritizedHerReplayBuffer)),
}

# Runs that have nothing of their own in the files.
OTHERS = ("SAC", "TQC, 3 steps, recency", "QRDQN", "SAC, rank, uniform actor")


@pytest.mark.filterwarnings("ignore:The last trajectory in the replay buffer will be truncated")
@pytest.mark.parametrize(
    "run, n_envs",
    [pytest.param(run, 1 + i % 2, marks=pytest.mark.slow if run in OTHERS else ()) for i, run in enumerate(RUNS)],
)
def test_a_resumed_run_equals_an_unstopped_one(run, n_envs, tmp_path):
    """
    One model continues, and another one loads its files. Parameters, optimizer states, priorities and draws are equal to the
    bit.

    No file holds the random state or the state of the environments, so the test sets both again for each model.
    """
    cls, env_id, kwargs = RUNS[run]

    def envs() -> Any:
        if env_id == "bits":
            return make_vec_env(BitFlippingEnv, n_envs, env_kwargs=dict(n_bits=4, continuous=False))
        return make_vec_env(env_id, n_envs)

    policy = "MultiInputPolicy" if env_id == "bits" else "MlpPolicy"
    settings = dict(learning_starts=20, batch_size=16, buffer_size=60, policy_kwargs=dict(net_arch=[8]), device="cpu")
    first = cls(policy, envs(), seed=0, **settings, **kwargs).learn(90)
    first.save(tmp_path / "model")
    first.save_replay_buffer(tmp_path / "run.buffer")

    first.set_env(envs())
    second = cls.load(tmp_path / "model", env=envs(), device="cpu")
    second.load_replay_buffer(tmp_path / "run.buffer")
    for model in (first, second):
        seed_all(7)
        model.get_env().seed(3)
        model.action_space.seed(3)
        model.learn(40, reset_num_timesteps=False)
        np.random.seed(1)
    for actual, expected in zip(parameters(second), parameters(first), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert_same(snapshot(second.replay_buffer), snapshot(first.replay_buffer))
    assert second.num_timesteps == first.num_timesteps and second._n_updates == first._n_updates


def statistics_of(env: VecNormalize) -> list[np.ndarray]:
    return [np.asarray(value) for rms in (env.obs_rms, env.ret_rms) for value in vars(rms).values()]


def test_a_run_that_is_resumed_as_the_page_says_has_the_same_statistics(tmp_path, monkeypatch):
    """
    The code of the page starts the run, which is stopped 5 steps after a checkpoint. The same code continues it with the
    statistics of ``VecNormalize`` at the checkpoint.
    """
    monkeypatch.chdir(tmp_path)
    code = next(block.code for block in benchmark("pages").blocks_of(ROOT / "docs/saving.md") if block.language == "python")
    at_step: dict[int, list[np.ndarray]] = {}
    on_step, learn = BufferCheckpointCallback._on_step, PERSAC.learn

    def stop(self: Any) -> bool:
        at_step[self.num_timesteps] = copy.deepcopy(statistics_of(self.training_env))
        on_step(self)
        if self.num_timesteps == 105:
            raise KeyboardInterrupt
        return True

    with monkeypatch.context() as patch:
        patch.setattr(BufferCheckpointCallback, "_on_step", stop)
        with pytest.raises(KeyboardInterrupt):
            exec(code, {})
    resumed: list[Any] = []
    monkeypatch.setattr(PERSAC, "learn", lambda self, *args, **kwargs: resumed.append(self))
    exec(code, {})
    (model,) = resumed
    assert model.num_timesteps == 100 and model.replay_buffer.size() == 99
    found = statistics_of(model.get_vec_normalize_env())
    for actual, expected in zip(found, at_step[100], strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert model.get_vec_normalize_env().training
    monkeypatch.setattr(PERSAC, "learn", learn)
    assert not all(np.array_equal(*pair) for pair in zip(found, at_step[105], strict=True))
    model.learn(10, reset_num_timesteps=False)
