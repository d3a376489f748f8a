"""What compiled training learns: arms differ in when they draw, checks come once each, and solved runs end."""

import numpy as np
import pytest

from study import compiled

pytest.importorskip("sbx")


@pytest.mark.parametrize("task", compiled.CAPS)
@pytest.mark.parametrize("arm", [compiled.TORCH, compiled.AT_ONCE])
def test_a_run_is_stopped_at_its_cap_after_checks_that_come_once_each(task, arm, monkeypatch):
    checked = []
    monkeypatch.setattr(compiled, "solves", lambda task, model: checked.append(model._n_updates))
    monkeypatch.setattr(compiled, "CAPS", dict.fromkeys(compiled.CAPS, 150))
    found = compiled.train(task, arm, "", 1e-3, 1)
    assert (found["updates"], found["solved"], checked) == (150, 0, [50, 100, 150])


def test_a_run_ends_at_the_second_of_two_checks_that_solve(monkeypatch):
    answers = iter([True, False, True, True])
    monkeypatch.setattr(compiled, "solves", lambda *_: next(answers))
    found = compiled.train(compiled.PENDULUM, compiled.AT_ONCE, "", 1e-3, 1)
    assert found["updates"] == 200 and found["solved"] == 1


@pytest.mark.parametrize("arm", [compiled.AT_ONCE, compiled.IN_TURN])
def test_draws_of_a_call_see_its_td_errors_only_in_turn(arm):
    """Both make the same number of updates. In turn, the priorities of a batch are written before the next draw."""
    model = compiled.make_model(compiled.PENDULUM, arm, 1e-3, 1)
    events = []
    buffer = model.replay_buffer
    sample, update = buffer.sample, buffer.update_priorities
    buffer.sample = lambda *args, **kwargs: events.append("draw") or sample(*args, **kwargs)
    buffer.update_priorities = lambda *args, **kwargs: events.append("write") or update(*args, **kwargs)
    model.learn(110)
    assert model._n_updates == compiled.CALL
    n = compiled.CALL
    assert events == (["draw"] * n + ["write"] * n if arm == compiled.AT_ONCE else ["draw", "write"] * n)


def test_pendulum_is_solved_by_the_mean_of_the_last_episodes():
    model = compiled.make_model(compiled.PENDULUM, compiled.TORCH, 1e-3, 1)
    model._setup_learn(1)
    model.ep_info_buffer.extend({"r": -150.0} for _ in range(compiled.LAST - 1))
    assert not compiled.solves(compiled.PENDULUM, model)
    model.ep_info_buffer.append({"r": -640.0})
    assert np.isclose(np.mean([each["r"] for each in model.ep_info_buffer]), -199.0)
    assert compiled.solves(compiled.PENDULUM, model)
    model.ep_info_buffer.append({"r": -170.0})
    assert not compiled.solves(compiled.PENDULUM, model)
