"""``BufferCheckpointCallback`` saves checkpoints, and ``latest_checkpoint`` finds the latest complete one."""

import inspect
import os
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from stable_baselines3 import SAC
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import VecNormalize

from sb3_per import PERSAC, BufferCheckpointCallback, PrioritizedHerReplayBuffer, latest_checkpoint
from sb3_per.persistence.generations import manifest_names_in
from tests.helpers.messages import no_user_warnings
from tests.helpers.saved import assert_same, names_of, snapshot


def make_model(env: Any = "Pendulum-v1", **kwargs: Any) -> PERSAC:
    return PERSAC("MlpPolicy", env, learning_starts=1_000, buffer_size=300, device="cpu", seed=0, **kwargs)


class States(BaseCallback):
    """Record the contents of the buffer at each step. As in a checkpoint, the current step is not in the buffer yet."""

    def _init_callback(self) -> None:
        self.states: dict[int, dict[str, Any]] = {}

    def _on_step(self) -> bool:
        self.states[self.num_timesteps] = snapshot(self.model.replay_buffer)
        return True


def test_arguments_match_the_stock_callback(tmp_path):
    """Order and defaults are the same, except that the buffer is saved by default. A bad ``keep`` is refused."""
    stock, ours = (inspect.signature(cls.__init__).parameters for cls in (CheckpointCallback, BufferCheckpointCallback))
    assert list(ours)[: len(stock)] == list(stock)
    changed = {name for name in stock if stock[name].default != ours[name].default}
    assert changed == {"save_replay_buffer"} and ours["save_replay_buffer"].default is True
    for keep in (0, -1, 1.5, True, None):
        with pytest.raises(ValueError, match="keep"):
            BufferCheckpointCallback(10, str(tmp_path), keep=keep)


def test_latest_checkpoint_finds_the_newest_pair_of_a_run(tmp_path):
    """All models are kept, and one directory has the last two generations of the buffer. The newest pair restores step 120."""
    folder = tmp_path / "new" / "folder"
    env = VecNormalize(make_vec_env("Pendulum-v1", 2))
    model = make_model(env)
    states = States()
    model.learn(120, callback=[BufferCheckpointCallback(20, str(folder), "a", save_vecnormalize=True), states])
    assert latest_checkpoint(folder) == (folder / "a_120_steps.zip", folder / "a_replay_buffer.buffer")
    names = sorted(os.listdir(folder))
    statistics = [f"a_vecnormalize_{n}_steps.pkl" for n in (40, 80, 120)]
    assert names == sorted(["a_replay_buffer.buffer", *(f"a_{n}_steps.zip" for n in (40, 80, 120)), *statistics])
    assert [name.split("-")[2] for name in manifest_names_in(folder / "a_replay_buffer.buffer")] == [
        "120.json",
        "80.json",
    ]
    model_path, buffer_path = latest_checkpoint(folder)
    loaded = PERSAC.load(model_path, env=VecNormalize.load(str(folder / "a_vecnormalize_120_steps.pkl"), env.venv))
    loaded.load_replay_buffer(buffer_path)
    assert loaded.num_timesteps == 120
    assert_same(snapshot(loaded.replay_buffer), states.states[120])


def test_latest_checkpoint_has_the_most_steps_or_the_given_prefix(tmp_path):
    for prefix, n_steps in (("old", 40), ("new[1]", 20)):
        make_model().learn(n_steps, callback=BufferCheckpointCallback(20, str(tmp_path), prefix))
    old, new = tmp_path / "old_40_steps.zip", tmp_path / "new[1]_20_steps.zip"
    for given, model in ((None, old), ("old", old), ("new[1]", new)):
        assert latest_checkpoint(tmp_path, name_prefix=given).model == model
    assert latest_checkpoint(tmp_path, "ol") is None
    with pytest.raises(ValueError, match="name_prefix must be None or a string, not 5"):
        latest_checkpoint(tmp_path, 5)


def test_models_without_a_buffer_are_no_checkpoint(tmp_path):
    """With ``save_replay_buffer=False``, only models are saved, so ``latest_checkpoint`` finds no pair."""
    make_model().learn(20, callback=BufferCheckpointCallback(10, str(tmp_path), save_replay_buffer=False))
    assert sorted(os.listdir(tmp_path)) == ["rl_model_10_steps.zip", "rl_model_20_steps.zip"]
    assert latest_checkpoint(tmp_path) is None


def test_a_stock_buffer_is_refused_before_training(tmp_path):
    """With ``save_replay_buffer=False``, the callback saves stock models."""
    model = SAC("MlpPolicy", "Pendulum-v1", buffer_size=100, device="cpu")
    with pytest.raises(TypeError, match=r"SAC has a ReplayBuffer"):
        model.learn(20, callback=BufferCheckpointCallback(10, str(tmp_path / "a")))
    assert not (tmp_path / "a").exists()
    model.learn(20, callback=BufferCheckpointCallback(10, str(tmp_path / "b"), save_replay_buffer=False))
    assert sorted(os.listdir(tmp_path / "b")) == ["rl_model_10_steps.zip", "rl_model_20_steps.zip"]


def test_latest_checkpoint_without_a_complete_pair_is_none(tmp_path):
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


def test_latest_checkpoint_skips_damaged_files(tmp_path):
    """
    The returned model and buffer are from the same step, whichever file of the newest checkpoint is damaged. If all files of
    the buffer are damaged, there is no checkpoint.
    """
    whole = tmp_path / "whole"
    states = States()
    make_model().learn(150, callback=[BufferCheckpointCallback(50, str(whole)), states])
    for what, how in (
        ("rl_model_150*", "cut"),
        ("rl_model_150*", "flipped"),
        ("*.buffer/gen-*", "missing"),
        ("*.buffer/gen-*", "flipped"),
        ("*.buffer/state-*", "flipped"),
    ):
        folder = tmp_path / "damaged"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        damaged = sorted(folder.glob(what))[-1]
        damage(damaged, how)
        model_path, buffer_path = latest_checkpoint(folder)
        assert model_path == folder / "rl_model_100_steps.zip"
        assert buffer_path.suffix == (".json" if damaged.suffix == ".zip" else ".buffer")
        loaded = PERSAC.load(model_path, device="cpu")
        # Nothing that is loaded is damaged after the loss of a model, or of a manifest.
        is_silent = damaged.suffix == ".zip" or how == "missing"
        with no_user_warnings() if is_silent else pytest.warns(UserWarning, match=damaged.name):
            loaded.load_replay_buffer(buffer_path)
        assert loaded.num_timesteps == 100
        assert_same(snapshot(loaded.replay_buffer), states.states[100])
    for path in whole.glob("*.buffer/*.bin"):
        damage(path, "cut")
    assert latest_checkpoint(whole) is None


def damage_statistics(path: Path, how: str) -> None:
    path.unlink() if how == "missing" else path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("how", ["missing", "cut"])
def test_a_checkpoint_has_the_statistics_of_its_step(how, tmp_path):
    """Where a run saves them, a model and a buffer without them are no checkpoint."""
    model = make_model(VecNormalize(make_vec_env("Pendulum-v1")))
    model.learn(30, callback=BufferCheckpointCallback(10, str(tmp_path), "a[1]_b", save_vecnormalize=True))
    statistics = [tmp_path / f"a[1]_b_vecnormalize_{n}_steps.pkl" for n in (10, 20, 30)]
    for n_steps, is_newest in ((30, True), (20, False)):
        checkpoint = latest_checkpoint(tmp_path)
        model_path, buffer_path = checkpoint
        assert (model_path, buffer_path) == (checkpoint.model, checkpoint.buffer)
        assert model_path == tmp_path / f"a[1]_b_{n_steps}_steps.zip"
        assert buffer_path.suffix == (".buffer" if is_newest else ".json")
        assert checkpoint.vec_normalize == tmp_path / f"a[1]_b_vecnormalize_{n_steps}_steps.pkl"
        damage_statistics(checkpoint.vec_normalize, how)
    assert latest_checkpoint(tmp_path) is None  # the buffer keeps two generations
    for path in statistics:
        path.unlink(missing_ok=True)
    checkpoint = latest_checkpoint(tmp_path)
    assert checkpoint.model == tmp_path / "a[1]_b_30_steps.zip" and checkpoint.vec_normalize is None


def test_statistics_of_another_run_in_the_folder_do_not_matter(tmp_path):
    (tmp_path / "other_vecnormalize_5_steps.pkl").write_bytes(b"")
    make_model().learn(10, callback=BufferCheckpointCallback(10, str(tmp_path)))
    checkpoint = latest_checkpoint(tmp_path)
    assert checkpoint == (tmp_path / "rl_model_10_steps.zip", tmp_path / "rl_model_replay_buffer.buffer")
    assert checkpoint.vec_normalize is None


def rows_in(path: Path) -> set[str]:
    return {name for name in names_of(path) if name.startswith("rows")}


def test_a_run_writes_only_new_steps(tmp_path):
    """
    Also the first checkpoint of a resumed run, and a save by hand to the same directory. Another directory gets everything.
    """
    model, path = make_model(), tmp_path / "rl_model_replay_buffer.buffer"
    model.learn(100, callback=BufferCheckpointCallback(100, str(tmp_path)))
    first = rows_in(path)
    resumed = PERSAC.load(tmp_path / "rl_model_100_steps.zip", env=make_vec_env("Pendulum-v1"))
    resumed.load_replay_buffer(path)
    resumed.learn(10, callback=BufferCheckpointCallback(10, str(tmp_path), keep=1), reset_num_timesteps=False)
    second = rows_in(path)
    assert first < second
    resumed.save_replay_buffer(path, keep=1)
    assert first < rows_in(path)
    resumed.save_replay_buffer(tmp_path / "other.buffer")
    assert sum(file.stat().st_size for file in tmp_path.glob("other.buffer/rows*")) > 100 * 4 * (3 + 3 + 1 + 1)


def test_a_buffer_with_infos_is_refused_before_training(tmp_path):
    env = make_vec_env(BitFlippingEnv, env_kwargs=dict(continuous=True))
    kwargs: Any = dict(replay_buffer_class=PrioritizedHerReplayBuffer, replay_buffer_kwargs=dict(copy_info_dict=True))
    model = PERSAC("MultiInputPolicy", env, device="cpu", buffer_size=100, **kwargs)
    with pytest.raises(ValueError, match=r"Infos \(copy_info_dict=True\) can only be saved as a pickle"):
        model.learn(20, callback=BufferCheckpointCallback(10, str(tmp_path / "a")))
    assert not (tmp_path / "a").exists()


def test_the_stock_callback_still_saves_pickles(tmp_path):
    """SB3's callback asks for a name that ends in ``.pkl``, so the buffer is saved as a pickle."""
    make_model().learn(20, callback=CheckpointCallback(20, str(tmp_path), save_replay_buffer=True))
    model = make_model(gym.make("Pendulum-v1"))
    model.load_replay_buffer(tmp_path / "rl_model_replay_buffer_20_steps.pkl")
    assert model.replay_buffer.size() == 19  # SB3 calls callbacks before it stores the current step
