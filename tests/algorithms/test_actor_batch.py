"""The setting `actor_batch` chooses the batch that the actor and the entropy coefficient learn from."""

from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_per import PERDQN, PERQRDQN, PERSAC, PERTD3, PERCrossQ, PrioritizedHerReplayBuffer
from tests.helpers.algorithms import filled_model, normalized
from tests.helpers.buffers import MANY, counts_of, drawable_ids, filled_buffer

# TQC asks for its observations as SAC does, and DDPG is TD3.
ACTORS = (PERSAC, PERTD3, PERCrossQ)


def model_of(cls: Any, actor_batch: str, **kwargs: Any) -> Any:
    if cls in (PERTD3, PERCrossQ):
        kwargs["policy_delay"] = 1
    if cls is PERCrossQ:
        kwargs["policy_kwargs"] = dict(net_arch=[8], batch_norm=False)
    model = filled_model(
        cls, "MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(actor_batch=actor_batch, alpha=1.0), **kwargs
    )
    ids = drawable_ids(model.replay_buffer)
    model.replay_buffer.update_priorities(ids, np.random.default_rng(0).exponential(size=len(ids)) ** 3)
    return model


def seen_by_the_actor(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[th.Tensor]:
    """Record the observations that the actor's networks receive with gradient."""
    seen: list[th.Tensor] = []
    method = "action_log_prob" if hasattr(model.actor, "action_log_prob") else "forward"
    original = getattr(model.actor, method)

    def spying(obs: th.Tensor, *args: Any) -> Any:
        if th.is_grad_enabled():
            seen.append(obs)
        return original(obs, *args)

    monkeypatch.setattr(model.actor, method, spying)
    return seen


@pytest.mark.parametrize("cls", ACTORS)
def test_a_uniform_actor_batch_is_drawn_uniformly(cls, monkeypatch):
    """The batch of the critics still follows the priorities. Without the setting, actor and critics share a batch."""
    model = model_of(cls, "prioritized")
    seen = seen_by_the_actor(model, monkeypatch)
    batch = model.replay_buffer.sample(16)
    model.replay_buffer.sample = lambda batch_size, env: batch
    model.train(gradient_steps=1, batch_size=16)
    assert len(seen) == 1 and th.equal(seen[0], batch.observations)

    model = model_of(cls, "uniform")
    seen = seen_by_the_actor(model, monkeypatch)
    counts = {"actor": np.zeros(60), "critics": np.zeros(60)}
    stored = th.as_tensor(model.replay_buffer.observations[:60, 0])
    sample = model.replay_buffer.sample

    def recording(*args: Any, **kwargs: Any) -> Any:
        batch = sample(*args, **kwargs)
        counts["critics"] += np.bincount(batch.indices, minlength=60)
        return batch

    monkeypatch.setattr(model.replay_buffer, "sample", recording)
    monkeypatch.setattr(model.replay_buffer, "update_priorities", lambda *args: 0)
    model.train(gradient_steps=10, batch_size=60)
    assert len(seen) == 10
    for obs in seen:
        counts["actor"] += (obs[:, None] == stored[None]).all(dim=2).sum(dim=0).numpy()
    assert (counts["actor"] == 10).all()  # 60 stratified draws of 60
    assert counts["critics"].max() > 50


@pytest.mark.parametrize("kind, stratified", [("plain", False), ("memory", True), ("her", True)])
def test_sample_observations_draws_uniformly_from_eligible_transitions(kind, stratified):
    buffer = filled_buffer(kind, actor_batch="uniform", stratified=stratified)
    ids = drawable_ids(buffer)
    obs = buffer.sample_observations(MANY)
    obs = obs["observation"] if isinstance(obs, dict) else obs
    held = buffer.observations["observation"] if kind == "her" else buffer.observations
    rows = held.reshape(-1, *held.shape[2:])
    if kind == "her":  # observations are the number of the step
        steps = ids // 2
        counts = np.bincount(obs[:, 0].numpy().astype(int), minlength=steps.max() + 1)
        expected = np.bincount(steps, minlength=steps.max() + 1) * MANY / len(ids)
    else:
        matches = (obs.numpy()[:, None] == rows[None]).all(axis=2)
        counts, expected = matches.sum(axis=0)[ids % len(rows)], np.full(len(ids), MANY / len(ids))
        assert matches.any(axis=1).all()
        assert counts_of(ids, ids).sum() == len(ids)
    tolerance = 3 if stratified else 5 * np.sqrt(MANY / len(ids)) * 2
    assert (np.abs(counts - expected) <= tolerance).all()


def test_a_uniform_actor_batch_has_relabelled_goals():
    """The share of new goals is that of a batch for the critics."""
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=True, max_steps=4), n_envs=2)
    model = PERSAC(
        "MultiInputPolicy",
        env,
        learning_starts=20,
        batch_size=20,
        replay_buffer_class=PrioritizedHerReplayBuffer,
        replay_buffer_kwargs=dict(n_sampled_goal=4, actor_batch="uniform"),
        policy_kwargs=dict(net_arch=[8]),
    )
    model.learn(60)
    obs = model.replay_buffer.sample_observations(200)
    is_own = (obs["desired_goal"] == th.as_tensor(env.get_attr("desired_goal")[0])).all(dim=1)
    assert is_own[:40].all()  # real ones first
    assert not is_own[40:].all()


def test_the_actor_batch_is_normalized_by_vec_normalize():
    kwargs = dict(learning_starts=20, batch_size=16, replay_buffer_kwargs=dict(actor_batch="uniform"))
    model = PERSAC("MlpPolicy", normalized("Pendulum-v1"), policy_kwargs=dict(net_arch=[8]), **kwargs)
    model.learn(60)
    buffer = model.replay_buffer
    obs = buffer.sample_observations(500, env=model._vec_normalize_env)
    held = th.as_tensor(model.env.normalize_obs(buffer.observations[: buffer.pos]).reshape(-1, 3))
    assert (obs[:, None] == held[None]).all(dim=2).any(dim=1).all()


def test_the_setting_is_refused_without_an_actor():
    for cls in (PERDQN, PERQRDQN):
        with pytest.raises(NotImplementedError, match=f"{cls.__name__} with actor_batch='uniform' .* no actor"):
            cls("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(actor_batch="uniform"))
