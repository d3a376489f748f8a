"""The comparison of two checkouts: a run gives the same digest twice, and other runs give another one."""

import pytest
from stable_baselines3.common.utils import set_random_seed

from tests.utils import benchmark

parity = benchmark("parity")


def digest(name: str) -> str:
    set_random_seed(0)
    return parity.digest_of(dict(parity.runs())[name]())


def test_every_algorithm_is_compared():
    algorithms = {name.split()[0] for name, _ in parity.runs()}
    assert algorithms == {"SAC", "TD3", "DDPG", "DQN", "QRDQN", "TQC", "CrossQ", "RecurrentDQN", "RecurrentSAC"}


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("DQN uniform plain", "DQN proportional plain"),
        ("RecurrentDQN rank burn-in", "RecurrentDQN uniform burn-in"),
        ("RecurrentSAC proportional zero state", "RecurrentSAC rank zero state"),
    ],
)
def test_equal_runs_are_equal_to_the_bit(name, other):
    assert digest(name) == digest(name) != digest(other)
