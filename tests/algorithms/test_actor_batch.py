"""The setting `actor_batch` chooses the batch that the actor and the entropy coefficient learn from."""

from typing import Any

import numpy as np
import pytest
import torch as th
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv

from sb3_per import PERDQN, PERQRDQN, PERSAC, PERTD3, PERCrossQ, PrioritizedHerReplayBuffer
from tests.helpers.buffers import MANY, counts_of, drawable_ids, filled_buffer, probabilities
from tests.helpers.updates import filled_model, normalized

# One algorithm for each gradient step: TQC uses that of SAC, and DDPG that of TD3.
ACTORS = (PERSAC, PERTD3, PERCrossQ)


def model_of(cls: Any, actor_batch: str, unique: bool = False, **kwargs: Any) -> Any:
    if cls in (PERTD3, PERCrossQ):
        kwargs["policy_delay"] = 1
    if cls is PERCrossQ:
        kwargs["policy_kwargs"] = dict(net_arch=[8], batch_norm=False)
    model = filled_model(
        cls, "MlpPolicy", "Pendulum-v1", replay_buffer_kwargs=dict(actor_batch=actor_batch, alpha=1.0, unique=unique), **kwargs
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
    """The batch of the critics still follows the priorities."""
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
    model.train(gradient_steps=30, batch_size=60)
    assert len(seen) == 30
    for obs in seen:
        counts["actor"] += (obs[:, None] == stored[None]).all(dim=2).sum(dim=0).numpy()
    assert (counts["actor"] == 30).all()  # 60 stratified draws of 60
    assert counts["critics"].max() > 150


@pytest.mark.parametrize("cls", ACTORS)
def test_without_the_setting_actor_and_critics_share_a_batch(cls, monkeypatch):
    for actor_batch in ("prioritized", "weighted"):
        model = model_of(cls, actor_batch)
        seen = seen_by_the_actor(model, monkeypatch)
        batch = model.replay_buffer.sample(16)
        model.replay_buffer.sample = lambda batch_size, env, batch=batch: batch
        model.train(gradient_steps=1, batch_size=16)
        assert len(seen) == 1 and th.equal(seen[0], batch.observations)


@pytest.mark.parametrize("cls", ACTORS)
def test_a_weighted_actor_batch_weights_the_actor_loss(cls):
    """A transition of weight 0 does not change the actor and the entropy coefficient, and weight 2 counts twice."""
    model = model_of(cls, "weighted", unique=True)
    batch = model.replay_buffer.sample(8)

    def updated(picked: list[int], actor_weights: list[float]) -> Any:
        chosen = type(batch)(*[None if part is None else part[picked] for part in batch])
        chosen.n_p = 1.0 / np.maximum(np.array(actor_weights), 1e-30)
        twin = model_of(cls, "weighted")
        twin.replay_buffer.sample = lambda batch_size, env: chosen
        if hasattr(twin.actor, "action_log_prob"):  # without noise, so that rows can be compared

            def without_noise(obs: th.Tensor) -> Any:
                mean = twin.actor.get_action_dist_params(obs)[0]
                return th.tanh(mean), -mean.square().sum(dim=1)

            twin.actor.action_log_prob = without_noise
        twin.critic.optimizer.step = lambda: None  # the actors shall see the same critics
        twin.train(gradient_steps=1, batch_size=len(picked))
        return twin

    once = updated([0, 1, 2, 3], [2.0, 1.0, 1.0, 0.0])
    twice = updated([0, 0, 1, 2], [1.0, 1.0, 1.0, 1.0])
    equal = updated([0, 1, 2, 3], [1.0, 1.0, 1.0, 1.0])

    # Compare gradients, because the first step of Adam depends only on their signs.
    def gradients(model: Any) -> list[th.Tensor]:
        return [parameter.grad for parameter in model.actor.parameters() if parameter.grad is not None]

    for actual, expected in zip(gradients(once), gradients(twice), strict=True):
        th.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-6)
    others = zip(gradients(once), gradients(equal), strict=True)
    assert any(not th.allclose(actual, other, rtol=1e-2, atol=1e-5) for actual, other in others)


RECENT = dict(recency=0.999, recency_min=4)


@pytest.mark.parametrize(
    "kind, scheme, kwargs",
    [
        *((kind, "proportional", kwargs) for kind in ("plain", "memory") for kwargs in ({}, RECENT, dict(unique=True))),
        *(("her", "proportional", kwargs) for kwargs in ({}, dict(uniform_fraction=0.2), dict(unique=True))),
        *(("plain", scheme, kwargs) for scheme in ("rank", "lap") for kwargs in (dict(uniform_fraction=0.2), RECENT)),
        ("memory", "rank", dict(unique=True)),
        ("her", "rank", {}),
    ],
)
def test_actor_weights_invert_the_probabilities(kind, scheme, kwargs):
    """Weights are 1 / (N P) for every kind of draw, and do not depend on beta."""
    buffer = filled_buffer(kind, scheme=scheme, actor_batch="weighted", **kwargs)
    ids = drawable_ids(buffer)
    if "recency" in kwargs:
        ids = ids[-max(int(len(ids) * 0.999**1000), 4) :]
    buffer.sampler.position = 1.0
    batch = buffer.sample(len(ids) if "unique" in kwargs else 200)
    expected = len(ids) * probabilities(buffer, ids, kwargs.get("uniform_fraction", 0.0))
    np.testing.assert_allclose(batch.n_p, expected[np.searchsorted(ids, batch.indices)], rtol=1e-9)
    assert filled_buffer(kind, scheme=scheme, **kwargs).sample(4).n_p is None


@pytest.mark.parametrize("kind, stratified", [("plain", True), ("plain", False), ("memory", True), ("her", True)])
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


@pytest.mark.parametrize("cls", ACTORS)
def test_the_actor_batch_is_normalized_by_vec_normalize(cls):
    kwargs = dict(learning_starts=20, batch_size=16, replay_buffer_kwargs=dict(actor_batch="uniform"))
    model = cls("MlpPolicy", normalized("Pendulum-v1"), policy_kwargs=dict(net_arch=[8]), **kwargs)
    model.learn(60)
    buffer = model.replay_buffer
    obs = buffer.sample_observations(500, env=model._vec_normalize_env)
    held = th.as_tensor(model.env.normalize_obs(buffer.observations[: buffer.pos]).reshape(-1, 3))
    assert (obs[:, None] == held[None]).all(dim=2).any(dim=1).all()


@pytest.mark.parametrize("cls, actor_batch", [(PERDQN, "uniform"), (PERQRDQN, "weighted")])
def test_the_setting_is_refused_without_an_actor(cls, actor_batch):
    with pytest.raises(NotImplementedError, match=f"{cls.__name__} with actor_batch='{actor_batch}' .* no actor"):
        cls("MlpPolicy", "CartPole-v1", replay_buffer_kwargs=dict(actor_batch=actor_batch))
