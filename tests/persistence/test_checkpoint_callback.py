"""Runs that are stopped and go on: checkpoints, the newest whole one, the same run as without the stop."""

import io
import os
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch as th
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import (
    PERDQN,
    PERQRDQN,
    PERSAC,
    PERTD3,
    PERTQC,
    BufferCheckpointCallback,
    PrioritizedHerReplayBuffer,
    latest_checkpoint,
)
from sb3_per.persistence import atomic
from sb3_per.persistence.generations import Directory
from tests.persistence.saved import assert_same, held
from tests.test_her import make_env

# ---- the same run as without the stop


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
    "SAC, rank, weighted actor": (
        PERSAC,
        "Pendulum-v1",
        dict(replay_buffer_kwargs=dict(scheme="rank", actor_batch="weighted")),
    ),
    "TD3, LAP": (PERTD3, "Pendulum-v1", dict(replay_buffer_kwargs=dict(scheme="lap", kappa="auto", max_priority_interval=7))),
    "TQC, 3 steps, recency": (PERTQC, "Pendulum-v1", dict(n_steps=3, replay_buffer_kwargs=dict(recency=0.99))),
    "DQN, beta by draws": (PERDQN, "CartPole-v1", dict(replay_buffer_kwargs=dict(beta_anneal_steps=300))),
    "DQN, memory": (
        PERDQN,
        "CartPole-v1",
        dict(optimize_memory_usage=True, replay_buffer_kwargs=dict(handle_timeout_termination=False, unique=True)),
    ),
    "QRDQN, mean of new ones": (PERQRDQN, "CartPole-v1", dict(replay_buffer_kwargs=dict(initial_priority="mean"))),
    "DQN, HER": (PERDQN, "bits", dict(replay_buffer_class=PrioritizedHerReplayBuffer)),
}


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize("run", RUNS)
def test_a_stopped_run_is_the_same_run(run, n_envs, tmp_path):
    """
    One process goes on, another one loads what it has saved: parameters, moments of the optimizers, priorities and random
    draws are equal to the bit. What no file has, the random state and the environment's, both set anew.
    """
    cls, env_id, kwargs = RUNS[run]

    def envs() -> Any:
        return make_env(n_envs) if env_id == "bits" else make_vec_env(env_id, n_envs)

    policy = "MultiInputPolicy" if env_id == "bits" else "MlpPolicy"
    settings = dict(learning_starts=40, batch_size=16, buffer_size=130, policy_kwargs=dict(net_arch=[8]), device="cpu")
    first = cls(policy, envs(), seed=0, **settings, **kwargs).learn(180)
    first.save(tmp_path / "model")
    first.save_replay_buffer(tmp_path / "run.buffer")

    first.set_env(envs())
    second = cls.load(tmp_path / "model", env=envs(), device="cpu")
    second.load_replay_buffer(tmp_path / "run.buffer")
    for model in (first, second):
        seed_all(7)
        model.get_env().seed(3)
        model.action_space.seed(3)
        model.learn(90, reset_num_timesteps=False)
        np.random.seed(1)
    for actual, expected in zip(parameters(second), parameters(first), strict=True):
        np.testing.assert_array_equal(actual, expected)
    assert_same(held(second.replay_buffer), held(first.replay_buffer))
    assert second.num_timesteps == first.num_timesteps and second._n_updates == first._n_updates


# ---- checkpoints


def make_model(env: Any = "Pendulum-v1", **kwargs: Any) -> PERSAC:
    return PERSAC("MlpPolicy", env, learning_starts=1_000, buffer_size=300, device="cpu", seed=0, **kwargs)


class States(BaseCallback):
    """What the buffer holds when a checkpoint is made: the step that is under way is not in it yet."""

    def _init_callback(self) -> None:
        self.states: dict[int, dict[str, Any]] = {}

    def _on_step(self) -> bool:
        self.states[self.num_timesteps] = held(self.model.replay_buffer)
        return True


def test_arguments_are_those_of_the_stock_callback(tmp_path):
    """In the same order and with the same defaults, but that the buffer is saved."""
    import inspect

    stock, ours = (inspect.signature(cls.__init__).parameters for cls in (CheckpointCallback, BufferCheckpointCallback))
    assert list(ours)[: len(stock)] == list(stock)
    changed = {name for name in stock if stock[name].default != ours[name].default}
    assert changed == {"save_replay_buffer"} and ours["save_replay_buffer"].default is True
    for keep in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError, match="keep"):
            BufferCheckpointCallback(10, str(tmp_path), keep=keep)


def test_checkpoints_of_one_run(tmp_path):
    """Every model, one directory with the last two generations; the newest pair is found and goes on."""
    folder = tmp_path / "new" / "folder"
    env = VecNormalize(make_vec_env("Pendulum-v1", 2))
    model = make_model(env)
    states = States()
    model.learn(200, callback=[BufferCheckpointCallback(20, str(folder), "a", save_vecnormalize=True), states])
    assert latest_checkpoint(folder) == (folder / "a_200_steps.zip", folder / "a_replay_buffer.buffer")
    names = sorted(os.listdir(folder))
    statistics = [f"a_vecnormalize_{n}_steps.pkl" for n in (120, 160, 200, 40, 80)]
    assert names == sorted(["a_replay_buffer.buffer", *(f"a_{n}_steps.zip" for n in range(40, 201, 40)), *statistics])
    assert [name.split("-")[2] for name in Directory(folder / "a_replay_buffer.buffer").manifests()] == [
        "200.json",
        "160.json",
    ]
    model_path, buffer_path = latest_checkpoint(folder)
    loaded = PERSAC.load(model_path, env=VecNormalize.load(str(folder / "a_vecnormalize_200_steps.pkl"), env.venv))
    loaded.load_replay_buffer(buffer_path)
    assert loaded.num_timesteps == 200
    assert_same(held(loaded.replay_buffer), states.states[200])


def test_without_the_buffer(tmp_path):
    """Models alone are no pair; a model without a buffer is saved as well."""
    make_model().learn(20, callback=BufferCheckpointCallback(10, str(tmp_path), save_replay_buffer=False))
    assert sorted(os.listdir(tmp_path)) == ["rl_model_10_steps.zip", "rl_model_20_steps.zip"]
    assert latest_checkpoint(tmp_path) is None


def test_a_stock_model(tmp_path):
    """Its buffer cannot be saved in this form, which is said before it trains; its zips can."""
    model = SAC("MlpPolicy", "Pendulum-v1", buffer_size=100, device="cpu")
    with pytest.raises(TypeError, match=r"SAC has a ReplayBuffer"):
        model.learn(20, callback=BufferCheckpointCallback(10, str(tmp_path / "a")))
    assert not (tmp_path / "a").exists()
    model.learn(20, callback=BufferCheckpointCallback(10, str(tmp_path / "b"), save_replay_buffer=False))
    assert sorted(os.listdir(tmp_path / "b")) == ["rl_model_10_steps.zip", "rl_model_20_steps.zip"]


def test_no_checkpoint(tmp_path):
    assert latest_checkpoint(tmp_path / "none") is None
    assert latest_checkpoint(tmp_path) is None
    (tmp_path / "x_replay_buffer.buffer").mkdir()
    (tmp_path / "x_10_steps.zip").write_bytes(b"no zip")
    assert latest_checkpoint(str(tmp_path)) is None


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[: len(content) // 2])
    else:
        path.write_bytes(content[:900] + bytes([content[900] ^ 1]) + content[901:])


@pytest.mark.parametrize("how", ["missing", "cut", "flipped"])
@pytest.mark.parametrize("what", ["model", "manifest", "state", "buffer"])
def test_the_newest_pair_that_is_whole(what, how, tmp_path):
    """A model and a buffer of the same moment, whatever of the newest is damaged; loading both gives that moment."""
    model = make_model()
    callback = BufferCheckpointCallback(50, str(tmp_path))
    states = States()
    model.learn(150, callback=[callback, states])
    buffer = tmp_path / "rl_model_replay_buffer.buffer"
    paths = {
        "model": tmp_path / "rl_model_150_steps.zip",
        "manifest": sorted(buffer.glob("gen-*"))[-1],
        "state": sorted(buffer.glob("state-*"))[-1],
    }
    if what == "buffer":
        for path in buffer.iterdir():
            damage(path, how) if path.suffix == ".npz" else None
        assert latest_checkpoint(tmp_path) is None
        return
    damage(paths[what], how)
    model_path, buffer_path = latest_checkpoint(tmp_path)
    assert model_path == tmp_path / "rl_model_100_steps.zip"
    assert buffer_path.suffix == (".json" if what == "model" else ".buffer")
    loaded = PERSAC.load(model_path, device="cpu")
    if what == "model" or (how == "missing" and what == "manifest"):
        loaded.load_replay_buffer(buffer_path)
    else:
        with pytest.warns(UserWarning, match=paths[what].name):
            loaded.load_replay_buffer(buffer_path)
    assert loaded.num_timesteps == 100
    assert_same(held(loaded.replay_buffer), states.states[100])


def test_leftovers_of_a_killed_run_disappear(tmp_path):
    (tmp_path / f"rl_model_10_steps.zip{atomic.TEMPORARY}").write_bytes(b"half")
    (tmp_path / f"other_10_steps.zip{atomic.TEMPORARY}").write_bytes(b"of another run")
    make_model().learn(20, callback=BufferCheckpointCallback(20, str(tmp_path)))
    assert {path.name for path in tmp_path.glob(f"*{atomic.TEMPORARY}")} == {f"other_10_steps.zip{atomic.TEMPORARY}"}


# ---- a model's zip


def test_a_model_is_saved_as_a_whole(tmp_path, monkeypatch):
    """An error in the middle, and at every step towards the end, leaves the zip that was there, and nothing else."""
    model = make_model()
    model.save(tmp_path / "m.zip")
    before = (tmp_path / "m.zip").read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for name in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(atomic.os, name, fail)
            with pytest.raises(OSError, match="No space"):
                model.save(tmp_path / "m")
    with monkeypatch.context() as patch:
        patch.setattr(zipfile.ZipFile, "writestr", fail)
        with pytest.raises(OSError, match="No space"):
            model.save(str(tmp_path / "m.zip"))
    assert os.listdir(tmp_path) == ["m.zip"]
    assert (tmp_path / "m.zip").read_bytes() == before
    SAC.load(tmp_path / "m.zip")


def test_names_of_zips_are_those_of_the_stock_algorithms(tmp_path):
    """With and without suffix, in folders that are not there, where a folder has the name, through a link, into a stream."""
    (tmp_path / "ours").mkdir()
    (tmp_path / "stock").mkdir()
    with pytest.warns(UserWarning):
        for folder, model in (("ours", make_model()), ("stock", SAC("MlpPolicy", "Pendulum-v1", buffer_size=10))):
            for name in ("a", "b.zip", "c.d", "new/deep/e"):
                model.save(str(tmp_path / folder / name))
            (tmp_path / folder / "f.zip").mkdir()
            model.save(tmp_path / folder / "f")
    found = [{path.relative_to(tmp_path / part) for path in (tmp_path / part).rglob("*")} for part in ("ours", "stock")]
    assert found[0] == found[1]
    link = tmp_path / "link.zip"
    link.symlink_to(tmp_path / "ours" / "a.zip")
    make_model().save(link)
    assert link.is_symlink()
    stream = io.BytesIO()
    make_model().save(stream)
    PERSAC.load(io.BytesIO(stream.getvalue()))


def test_stock_callback_still_pickles(tmp_path):
    """SB3's own callback names its files .pkl, and gets pickles."""
    make_model().learn(20, callback=CheckpointCallback(20, str(tmp_path), save_replay_buffer=True))
    model = make_model(gym.make("Pendulum-v1"))
    model.load_replay_buffer(tmp_path / "rl_model_replay_buffer_20_steps.pkl")
    assert model.replay_buffer.size() == 19  # the step that is under way comes later
