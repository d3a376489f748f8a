"""Conversion of a pickled buffer to a directory, on the command line."""

import pickle
import warnings

import numpy as np
import pytest
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per.cli.convert import main
from sb3_per.persistence.buffer_files import load_buffer
from tests.persistence.saved import assert_same, snapshot
from tests.utils import ACTION_SPACES, OBSERVATION_SPACES, fill, make_buffer


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
        main([str(source), str(tmp_path / "x.pkl"), "--trust"])
