"""The whole way: a run is a fresh process whose seconds count from its start, and ends at the level or at the cap."""

import time

import pytest

from study import whole_way


class Found(list):
    put = list.append


@pytest.fixture
def short(monkeypatch):
    """Two environments, and a window of two episodes."""
    monkeypatch.setattr(whole_way, "N_ENVS", 2)
    monkeypatch.setattr(whole_way, "WINDOW", 2)


def learn(arm: str, since: float = 0.0) -> dict:
    pytest.importorskip("envpool" if arm == whole_way.COMPILED else "dm_control")
    found = Found()
    whole_way.learn(arm, 1, 1e-3, 1, time.time() - since, found)
    return found[0]


@pytest.mark.slow
@pytest.mark.parametrize("arm", whole_way.CAMPAIGN.arms)
def test_a_run_ends_when_its_last_episodes_reach_the_level(arm, short, monkeypatch):
    monkeypatch.setattr(whole_way, "LEVEL", 0.0)
    row = learn(arm)
    assert row["solved"] == 1 and row["steps"] == 2 * whole_way.LENGTH and 0 < row["time"] < 600


@pytest.mark.parametrize("arm", [whole_way.STOCK, whole_way.COMPILED])
def test_a_run_is_stopped_at_the_cap_and_counts_with_it(arm, short, monkeypatch):
    monkeypatch.setattr(whole_way, "CAP", 50.0)
    row = learn(arm, since=60.0)
    assert (row["solved"], row["time"]) == (0, 50.0) and row["steps"] == 2


def test_a_run_that_fails_is_an_error():
    with pytest.raises(RuntimeError, match="the run of nothing, seed 1, ended with 1"):
        whole_way.train("reacher-hard", "nothing", "1", -1.0, 1)
