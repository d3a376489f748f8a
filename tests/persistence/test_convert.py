"""Conversion of a pickled buffer to a directory, on the command line."""

import pickle
import warnings

import numpy as np
import pytest
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

import sb3_per.cli.main
from sb3_per.cli.convert import main
from sb3_per.persistence.buffer_files import load_buffer
from tests.helpers.buffers import ACTION_SPACES, OBSERVATION_SPACES, fill, make_buffer
from tests.helpers.saved import assert_same, snapshot


def test_a_pickle_is_converted_only_with_trust(tmp_path):
    """Pickles of SB3 and of this package need ``--trust``. The target must be a new directory that ends in ``.buffer``."""
    stock = ReplayBuffer(20, OBSERVATION_SPACES["box"], ACTION_SPACES["box"], "cpu", 2)
    ours = make_buffer(10, 2, scheme="rank")
    fill([stock, ours], 13)
    for name, buffer in (("stock", stock), ("ours", ours)):
        source, target = tmp_path / f"{name}.pkl", tmp_path / f"{name}.buffer"
        source.write_bytes(pickle.dumps(buffer))
        with pytest.raises(SystemExit):
            main([str(source), str(target)])
        assert not target.exists()
        main([str(source), str(target), "--trust"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded = load_buffer(make_buffer(10, 2, scheme="rank"), target)
        np.testing.assert_array_equal(loaded.observations, ours.observations)
        with pytest.raises(ValueError, match="must be a new directory"):
            main([str(source), str(target), "--trust"])
    assert_same(snapshot(loaded), snapshot(ours))
    with pytest.raises(ValueError, match=r"ends in \.buffer"):
        main([str(source), str(tmp_path / "x.zip"), "--trust"])


def test_a_prioritized_pickle_becomes_one_of_a_stock_class(tmp_path):
    ours = make_buffer(10, 2, scheme="rank", n_steps=3)
    fill([ours], 13)
    source, target = tmp_path / "ours.pkl", tmp_path / "stock.pkl"
    source.write_bytes(pickle.dumps(ours))
    main([str(source), str(target), "--trust"])
    stock = pickle.loads(target.read_bytes())
    assert type(stock) is NStepReplayBuffer and (stock.n_steps, stock.pos, stock.full) == (3, 3, True)
    np.testing.assert_array_equal(stock.observations, ours.observations)
    with pytest.raises(ValueError, match=r"stock\.pkl holds a NStepReplayBuffer of SB3 already"):
        main([str(target), str(tmp_path / "again.pkl"), "--trust"])


def test_bad_arguments_are_one_line(tmp_path, monkeypatch, capsys):
    """The line names the path that was given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.buffer").mkdir()
    (tmp_path / "x.zip").write_bytes(b"PK")
    (tmp_path / "empty.pkl").touch()
    (tmp_path / "list.pkl").write_bytes(pickle.dumps([1]))
    for source, target, said in (
        ("none.pkl", "new.buffer", "There is no file none.pkl"),
        ("list.pkl", "there.buffer", "there.buffer must be a new directory, and it exists"),
        ("list.pkl", "new", "new must be a new directory whose name ends in .buffer, e.g. new.buffer"),
        ("there.buffer", "new.pkl", "there.buffer is a directory, which a model loads: model.load_replay_buffer("),
        ("list.pkl", "list.pkl", "list.pkl must be a new file, and it exists"),
        ("list.pkl", "new.pkl", "list.pkl holds a list"),
        ("list.pkl", "new.buffer", "list.pkl holds a list"),
        ("x.zip", "new.buffer", "x.zip is not a pickled replay buffer"),
        ("empty.pkl", "new.buffer", "empty.pkl is not a pickled replay buffer"),
    ):
        with pytest.raises(SystemExit) as exited:
            sb3_per.cli.main.main(["convert", source, target, "--trust"])
        error = capsys.readouterr().err
        assert exited.value.code == 1
        assert error.startswith(f"sb3-per convert: {said}") and error.count("\n") == 1
    assert not (tmp_path / "new.buffer").exists()
