"""The comparison of two checkouts: recurrent agents may differ by rounding, and nothing else may differ at all."""

import copy

from stable_baselines3.common.utils import set_random_seed

from tests.helpers.project import benchmark

parity = benchmark("parity")


def results(name: str) -> dict:
    set_random_seed(0)
    return parity.results_of(dict(parity.runs())[name]())


def test_every_algorithm_is_compared():
    names = [name.split() for name, _ in parity.runs()]
    algorithms = {name[0] for name in names}
    assert algorithms == {"SAC", "TD3", "DDPG", "DQN", "QRDQN", "TQC", "CrossQ", "RecurrentDQN", "RecurrentSAC", "compiled"}
    assert {name[1] for name in names if name[0] == "compiled"} == {"SAC", "TD3", "DDPG", "DQN", "TQC", "CrossQ"}


def test_a_recurrent_agent_may_differ_by_rounding_and_by_no_more():
    name = "RecurrentDQN rank burn-in"
    first = results(name)
    assert parity.are_alike(first, results(name)) and len(first["near"]) > 10
    largest = max(first["near"][1], key=abs)
    for relative, is_alike in ((1e-7, True), (1e-4, False), (float("nan"), False)):
        other = copy.deepcopy(first)
        other["near"][1][-1] += relative * largest
        assert parity.are_alike(first, other) == is_alike
    assert not parity.are_alike(first, {**first, "digest": "another"})
    assert not parity.are_alike(first, {**first, "near": first["near"][1:]})
    assert not parity.are_alike(first, {**first, "near": [first["near"][0][1:], *first["near"][1:]]})


def test_other_agents_are_equal_to_the_bit():
    names = ("DQN uniform plain", "DQN proportional plain", "compiled DQN 1 steps, 1 environments")
    first, another, compiled = map(results, names)
    assert first["near"] == compiled["near"] == []
    assert parity.are_alike(first, results(names[0])) and parity.are_alike(compiled, results(names[2]))
    assert len({each["digest"] for each in (first, another, compiled)}) == 3
