"""Schemes: masses and losses follow the published formulas, and bad settings are refused."""

import inspect
import itertools
import re

import numpy as np
import pytest
import torch as th

from sb3_per import LAP, PAL, PriorityScheme, Proportional, RankBased, Uniform
from sb3_per.buffers.settings import BufferSettings
from sb3_per.sampling.schemes import SCHEME_ARGUMENTS, SCHEMES, make_scheme
from sb3_per.sampling.shuffled import Shuffled
from sb3_per.sampling.sum_tree import SumTree
from tests.helpers.buffers import fill, make_buffer

pytestmark = pytest.mark.filterwarnings("ignore::sb3_per.buffers.settings.IgnoredSettingWarning")


def test_proportional_masses_follow_the_formula():
    abs_td_errors = np.array([0.0, 1e-9, 0.3, 4.0])
    for alpha, epsilon in ((0.0, 0.5), (0.6, 1e-6), (1.0, 0.5)):
        scheme = Proportional(alpha, epsilon)
        mass = scheme.mass(scheme.priority(abs_td_errors))
        np.testing.assert_allclose(mass, (abs_td_errors + epsilon) ** alpha)
        assert alpha > 0.0 or (mass == 1).all()


def test_weights_scale_the_gradient_of_each_transition():
    """The loss is a mean over the batch and a sum over the critics; each gradient is multiplied by its weight."""
    td_errors = th.tensor([[0.5, -1.0], [2.0, 0.1], [-3.0, 1.0]], requires_grad=True)
    weights = th.tensor([[1.0], [0.25], [0.0]])
    loss = Proportional().loss(0.5 * td_errors.square(), td_errors, weights)
    assert loss.item() == pytest.approx((1.0 * 0.5 * (0.25 + 1.0) + 0.25 * 0.5 * (4.0 + 0.01)) / 3)
    loss.backward()
    th.testing.assert_close(td_errors.grad, weights * td_errors.detach() / 3)


def test_schemes_have_their_own_defaults_and_take_settings():
    for scheme, alpha, reduction in (
        ("proportional", 0.6, "mean"),
        ("rank", 0.7, "mean"),
        ("lap", 0.4, "max"),
        ("pal", 0.4, "max"),
    ):
        made = make_buffer(scheme=scheme).scheme
        assert (made.alpha, made.td_error_reduction) == (alpha, reduction)
        changed = make_buffer(scheme=scheme, alpha=0.2, kappa=0.3, epsilon=0.4, td_error_reduction="min").scheme
        assert (changed.alpha, changed.td_error_reduction) == (0.2, "min")
        assert getattr(changed, "kappa", 0.3) == 0.3
        assert getattr(changed, "epsilon", 0.4) == 0.4


# For each setting of schemes a value that is allowed, which is no default, and one that is not.
VALUES = {"alpha": (0.2, -0.1), "epsilon": (0.4, 0.0), "kappa": (0.3, 0.0), "td_error_reduction": ("min", "sum")}


def test_the_settings_of_schemes_are_settings_of_buffers():
    assert VALUES.keys() == SCHEME_ARGUMENTS.keys()
    for name, default in SCHEME_ARGUMENTS.items():
        assert getattr(BufferSettings, name) == default
        for scheme_class in SCHEMES.values():
            of_scheme = inspect.signature(scheme_class).parameters.get(name)
            assert of_scheme is None or default is None or of_scheme.default == default


@pytest.mark.parametrize("name", VALUES)
def test_every_scheme_gets_the_settings_that_it_takes_and_refuses_bad_values(name):
    value, bad_value = VALUES[name]
    for scheme, scheme_class in SCHEMES.items():
        if name in inspect.signature(scheme_class).parameters:
            made = make_buffer(scheme=scheme, **{name: value}).scheme
            assert made.settings == {**make_scheme(scheme).settings, name: value}
        with pytest.raises(ValueError, match=f"{name} .*{bad_value}"):
            make_buffer(scheme=scheme, **{name: bad_value})


def test_new_transitions_never_have_less_mass_than_updated_ones():
    for scheme in SCHEMES:
        buffer = make_buffer(30, n_envs=2, scheme=scheme)
        for size in (1e-3, 50.0, 2.0):
            fill([buffer], 3)
            masses = buffer.masses
            assert (masses[buffer.pos - 1] >= masses[: buffer.pos - 3].max(initial=0.0)).all(), scheme
            batch = buffer.sample(12)
            buffer.update_priorities(batch.indices, np.full((12, 2), size) * [0.5, 1.5])
        assert np.count_nonzero(buffer.masses) == 18


def test_new_transitions_of_lap_have_at_least_its_least_priority():
    """Also before the first update, where ``max_priority`` is 1."""
    for scheme in (LAP(alpha=1.0, kappa=50.0), Shuffled(LAP(alpha=1.0, kappa=50.0))):
        buffer = make_buffer(4, scheme=scheme)
        fill([buffer], 4)
        assert (buffer.masses == 50.0).all()
        buffer.update_priorities([0], [0.0])
        assert (buffer.masses == 50.0).all()


# ---- rank-based


def test_rank_masses_follow_the_rank():
    """The mass is rank(i)^-alpha, whatever the errors are, and new transitions rank first."""
    rng = np.random.default_rng(0)
    buffer = make_buffer(40, scheme="rank", alpha=0.9)
    fill([buffer], 30)
    td_errors = rng.exponential(size=30) ** 3
    buffer.update_priorities(np.arange(30), td_errors)
    ranks = (-td_errors).argsort().argsort() + 1
    np.testing.assert_allclose(buffer.masses[:30, 0], ranks**-0.9)
    assert (buffer.masses[30:] == 0).all()
    fill([buffer], 1)
    assert buffer.masses[30, 0] == 1.0
    np.testing.assert_allclose(buffer.masses[:30, 0], (ranks + 1.0) ** -0.9)


def test_rank_draws_do_not_depend_on_the_scale_of_errors():
    """Errors a million times larger or smaller give the same draws from the first transition on."""
    drawn = []
    for scale in (1e-6, 1.0, 1e6):
        np.random.seed(0)
        buffer = make_buffer(20, n_envs=2, scheme="rank")
        for step in range(25):
            fill([buffer], 1, seed=step)
            batch = buffer.sample(8)
            buffer.update_priorities(batch.indices, scale * np.random.default_rng(step).normal(size=8))
            drawn.append((scale, tuple(batch.indices), tuple(batch.weights[:, 0].tolist())))
    first, *others = ([d[1:] for d in drawn if d[0] == scale] for scale in (1e-6, 1.0, 1e6))
    assert all(other == first for other in others)


def test_rank_puts_transitions_without_an_update_first():
    """Transitions without an update rank before all updated ones, however large the TD errors are."""
    buffer = make_buffer(40, scheme="rank", alpha=0.9)
    fill([buffer], 30)
    buffer.update_priorities(np.arange(10), 1e6 * np.arange(1.0, 11.0))
    fill([buffer], 5)
    masses = buffer.masses[:35, 0]
    assert masses[10:].min() > masses[:10].max()
    np.testing.assert_allclose(masses[:10], np.arange(35.0, 25.0, -1.0) ** -0.9)


def test_rank_draws_are_stratified_by_probability():
    """The ranks form batch_size segments of equal probability, and each segment gives one draw."""
    buffer = make_buffer(1000, scheme="rank")
    fill([buffer], 1000)
    buffer.update_priorities(np.arange(1000), np.random.default_rng(0).exponential(size=1000))
    for _ in range(20):
        ids = buffer.sample(16).indices
        masses = buffer.masses[:, 0]
        order = np.argsort(-masses)
        cumulative = np.cumsum(masses[order]) / masses.sum()
        rank_of = np.empty(1000, dtype=int)
        rank_of[order] = np.arange(1000)
        upper = cumulative[rank_of[ids]]
        lower = upper - masses[ids] / masses.sum()
        segments = np.arange(16) / 16
        assert ((lower < segments + 1 / 16) & (upper > segments)).all()


# ---- LAP and PAL


@pytest.mark.parametrize("alpha, kappa", [(0.0, 1.0), (0.4, 0.01)])
def test_lap_masses_and_loss_follow_the_formulas(alpha, kappa):
    """The mass is max(|td|^alpha, kappa^alpha) of the largest critic error; the loss is Huber, without weights."""
    td_errors = np.array([[0.3 * kappa, -0.1], [-2.0, 0.5], [0.0, 0.0], [5.0, -7.0]])
    buffer = make_buffer(4, scheme="lap", alpha=alpha, kappa=kappa)
    fill([buffer], 4)
    buffer.update_priorities(np.arange(4), td_errors)
    largest = np.abs(td_errors).max(axis=1)
    np.testing.assert_allclose(buffer.masses[:, 0], np.maximum(largest**alpha, kappa**alpha))
    assert (buffer.sample(20).weights == 1).all()

    td = th.tensor(td_errors, requires_grad=True)
    loss = buffer.scheme.loss(0.5 * td.square(), td, th.ones(4, 1))
    size = np.abs(td_errors)
    huber = np.where(size <= kappa, 0.5 * td_errors**2, kappa * (size - 0.5 * kappa))
    assert loss.item() == pytest.approx(huber.sum(axis=1).mean())
    loss.backward()
    np.testing.assert_allclose(td.grad, np.clip(td_errors, -kappa, kappa) / 4)


@pytest.mark.parametrize("alpha, kappa", [(0.0, 1.0), (0.4, 0.01)])
def test_pal_loss_follows_the_formula(alpha, kappa):
    """Draws are uniform, and the loss is normalized by the reduced errors, which get no gradient."""
    td_errors = np.array([[0.3 * kappa, -0.1], [-2.0, 0.5], [0.0, 0.0], [5.0, -7.0]])
    buffer = make_buffer(4, scheme="pal", alpha=alpha, kappa=kappa)
    fill([buffer], 4)
    buffer.update_priorities(np.arange(4), td_errors)
    assert (buffer.masses == 1).all()
    assert (buffer.sample(20).weights == 1).all()

    td = th.tensor(td_errors, requires_grad=True)
    loss = buffer.scheme.loss(0.5 * td.square(), td, th.ones(4, 1))
    size = np.abs(td_errors)
    scale = np.maximum(size.max(axis=1) ** alpha, kappa**alpha).mean()
    each = np.where(size <= kappa, 0.5 * kappa**alpha * size**2, kappa * size ** (1 + alpha) / (1 + alpha)) / scale
    assert loss.item() == pytest.approx(each.sum(axis=1).mean())
    loss.backward()
    gradient = np.sign(td_errors) * np.where(size <= kappa, kappa**alpha * size, kappa * size**alpha) / scale / 4
    np.testing.assert_allclose(td.grad, gradient, atol=1e-12)


def test_pal_gradient_is_continuous_at_kappa():
    alpha, kappa = 0.4, 0.01
    scheme = PAL(alpha, kappa)
    gradients = []
    for td_error in (np.nextafter(kappa, 0), kappa, np.nextafter(kappa, np.inf), kappa * (1 + 1e-9)):
        td = th.tensor([[td_error]], dtype=th.float64, requires_grad=True)
        scheme.loss(td, td, th.ones(1, 1)).backward()
        gradients.append(td.grad.item())
    np.testing.assert_allclose(gradients, gradients[0], rtol=1e-7)


def test_expected_gradients_of_lap_and_pal_are_equal():
    """Estimate both gradients for one critic, by LAP draws and by uniform draws (Fujimoto et al. 2020, theorem 3)."""
    np.random.seed(0)
    alpha, kappa, n, batch_size, n_batches = 0.4, 0.01, 200, 50, 200
    true_errors = np.random.default_rng(1).standard_t(3, size=n) * 2 * kappa
    theta = th.zeros((), dtype=th.float64, requires_grad=True)
    estimates = {}
    for name in ("lap", "pal"):
        buffer = make_buffer(n, scheme=name, alpha=alpha, kappa=kappa)
        fill([buffer], n)
        buffer.update_priorities(np.arange(n), true_errors)
        gradients = []
        for _ in range(n_batches):
            drawn = buffer.sample(batch_size).indices
            td_errors = th.tensor(true_errors[drawn, None]) + theta
            # The theorem takes lambda over all transitions, but PAL estimates it from the batch.
            gradients.append(
                th.autograd.grad(buffer.scheme.loss(td_errors, td_errors, th.ones(batch_size, 1)), theta)[0].item()
            )
        estimates[name] = (np.mean(gradients), np.std(gradients) / np.sqrt(n_batches))
    size = np.abs(true_errors)
    masses = np.maximum(size**alpha, kappa**alpha)
    exact = np.sum(masses / masses.sum() * np.clip(true_errors, -kappa, kappa))
    assert abs(exact) > 0.02 * kappa  # the gradient is large enough to compare
    for mean, error in estimates.values():
        # Dividing by lambda of the batch biases the mean by the order of 1 / batch_size.
        assert abs(mean - exact) < 4 * error + 0.02 * abs(exact)


def test_uniform_masses_and_weights_are_1():
    buffer = make_buffer(50, n_envs=2, scheme="uniform", alpha=3.0)
    fill([buffer], 50)
    buffer.update_priorities(np.arange(100), np.random.default_rng(0).exponential(size=100))
    assert (buffer.masses == 1).all()
    assert (buffer.sample(20).weights == 1).all()


# ---- user-defined schemes


class Shifted(PriorityScheme):
    """A minimal scheme of a user."""

    def priority(self, abs_td_errors):
        return abs_td_errors + 2.0


class Unweighted(Shifted):
    importance_sampling = False


def test_a_user_defined_scheme_sets_priorities_and_weights():
    buffer = make_buffer(4, scheme=Shifted(alpha=1.0, td_error_reduction="max"))
    fill([buffer], 4)
    buffer.update_priorities(np.arange(4), [[0.0, 0.0], [1.0, -2.0], [3.0, 0.0], [-4.0, 0.0]])
    np.testing.assert_array_equal(buffer.masses[:, 0], [2.0, 4.0, 5.0, 6.0])
    assert buffer.max_priority == 6.0
    assert buffer.sample(32).weights.min() < 1
    buffer = make_buffer(4, scheme=Unweighted(alpha=1.0))
    fill([buffer], 4)
    buffer.update_priorities(np.arange(4), np.arange(4.0))
    assert (buffer.sample(32).weights == 1).all()


def test_repr_names_the_settings():
    assert repr(Proportional(0.5, 1e-3)) == "Proportional(alpha=0.5, td_error_reduction='mean', epsilon=0.001)"


def test_scheme_objects_refuse_bad_settings():
    for make, value in (
        (lambda: Proportional(epsilon=0.0), "0.0"),
        (lambda: Proportional(alpha=np.inf), "inf"),
        (lambda: RankBased(alpha=-2.0), "-2.0"),
        (lambda: LAP(kappa=0.0), "0.0"),
        (lambda: PAL(kappa=np.nan), "nan"),
        (lambda: Uniform(td_error_reduction="sum"), "sum"),
    ):
        with pytest.raises(ValueError, match=value):
            make()


class Faulty(PriorityScheme):
    """A scheme of a user that returns a bad number from one method."""

    def __init__(self, method: str, value: float):
        super().__init__(alpha=1.0)
        self.method, self.value = method, value

    def priority(self, abs_td_errors):
        return np.full(len(abs_td_errors), self.value) if self.method == "priority" else abs_td_errors + 1.0

    def mass(self, priority):
        return np.full(np.shape(priority), self.value) if self.method == "mass" else super().mass(priority)

    def new_mass(self, max_priority):
        return self.value if self.method == "new_mass" else super().new_mass(max_priority)


class Sizes(PriorityScheme):
    """A scheme of a user whose priority may be 0."""

    def priority(self, abs_td_errors):
        return abs_td_errors


@pytest.mark.filterwarnings("ignore:.*a transition with priority 0 is hardly ever drawn")
def test_a_priority_of_0_gives_the_least_mass_for_every_exponent():
    for alpha in np.arange(1, 200) / 10:
        buffer = make_buffer(4, scheme=Sizes(alpha=float(alpha)))
        fill([buffer], 1)
        assert buffer.update_priorities([0], [0.0]) == 1
        assert 0.0 < buffer.masses[0, 0] < 1e-30


def test_bad_numbers_from_a_scheme_are_refused():
    """The number is refused before it enters the tree."""
    values = (np.inf, np.nan, -1.0, 0.0)
    others = ("mass", 1e308), ("mass", 5e-324), ("new_mass", 1e308)
    for method, value in (*itertools.product(("priority", "mass", "new_mass"), values), *others):
        buffer = make_buffer(4, scheme=Faulty("", 0.0))
        buffer.scheme.method, buffer.scheme.value = method, value  # only after the trial of a new scheme
        fill([buffer], 4)
        if method != "priority":
            with pytest.raises(ValueError, match=re.escape(str(value))):
                buffer.sample(2)  # the first draw asks for the mass of new transitions
        elif value != 0.0:  # the default `mass` replaces a priority of 0
            before, max_priority = buffer.masses, buffer.max_priority
            with pytest.raises(ValueError, match=re.escape(str(value))):
                buffer.update_priorities([0, 1], [1.0, 2.0])
            np.testing.assert_array_equal(buffer.masses, before)
            assert buffer.max_priority == max_priority


def test_a_refused_mass_changes_nothing():
    buffer = make_buffer(4, scheme=Faulty("", 0.0))
    fill([buffer], 4)
    buffer.sample(2)
    for value in (np.nan, 0.0):
        buffer.scheme.method, buffer.scheme.value = "mass", value
        before = buffer.masses
        with pytest.raises(ValueError, match=re.escape(str(value))):
            buffer.update_priorities([0, 1], [1.0, 2.0])
        np.testing.assert_array_equal(buffer.masses, before)
        assert buffer.max_priority == 1.0


class WithoutSuper(PriorityScheme):
    def __init__(self) -> None:
        self.alpha = 0.6


class WithoutPriority(PriorityScheme):
    pass


class Scalar(PriorityScheme):
    def priority(self, abs_td_errors):
        return abs_td_errors.sum() + 1.0


class Negative(PriorityScheme):
    def priority(self, abs_td_errors):
        return -abs_td_errors


class Unequal(Proportional):
    draws_uniformly = True


class WithoutNewMass(Proportional):
    def new_mass(self, max_priority):
        return 0.0


class FlatWeights(Proportional):
    def weights(self, relative_probabilities, beta):
        return (relative_probabilities.min() / relative_probabilities) ** beta


def test_mistakes_of_a_scheme_are_refused_when_it_is_made_part_of_a_buffer():
    for scheme, error, message in (
        (WithoutSuper(), ValueError, r"WithoutSuper must call super\(\).__init__\(alpha\)"),
        (WithoutPriority(0.6), NotImplementedError, r"WithoutPriority must implement priority\(\)"),
        (Scalar(0.6), ValueError, r"priority\(\) gave shape \(\) for 2 errors"),
        (Negative(0.6), ValueError, r"priority\(\) gave \[-0\. -1\.\] .*must be above 0"),
        (Unequal(), ValueError, "all masses must be equal"),
        (WithoutNewMass(), ValueError, r"new_mass\(\) gave 0.0: it must be above 0"),
        (FlatWeights(), ValueError, r"weights\(\) gave float64 of shape \(2,\)"),
    ):
        with pytest.raises(error, match=message):
            make_buffer(4, scheme=scheme)


class WithoutEpsilon(PriorityScheme):
    def priority(self, abs_td_errors):
        return abs_td_errors


def test_a_scheme_whose_priority_may_be_0_gives_a_warning():
    with pytest.warns(UserWarning, match="hardly ever drawn again. Add a small number"):
        make_buffer(4, scheme=WithoutEpsilon(0.6))


class ThresholdRanks(RankBased):
    def priority(self, abs_td_errors):
        return np.maximum(abs_td_errors - 0.5, 0.0)


def test_ranks_of_priority_0_are_refused():
    """The tree of ranks would take the transition for one that cannot be drawn."""
    with pytest.warns(UserWarning, match="hardly ever drawn"):
        buffer = make_buffer(4, scheme=ThresholdRanks())
    fill([buffer], 4)
    with pytest.raises(ValueError, match=r"priority\(\) gave 0.0: it must be above 0"):
        buffer.update_priorities([0, 1], [0.2, 2.0])
    assert (buffer.masses > 0).all()


def test_reduce_refuses_bad_shapes():
    for shape in ((3,), (3, 0), (2, 2, 2)):
        with pytest.raises(ValueError, match=re.escape(str(shape))):
            Proportional().reduce(np.ones(shape))


def test_scheme_names_may_be_in_upper_case():
    assert isinstance(make_scheme("LAP"), LAP) and isinstance(make_scheme("Rank"), RankBased)


def test_unknown_schemes_are_refused_with_a_hint():
    for scheme, message in (
        ("per", "Unknown scheme 'per': did you mean 'proportional'"),
        ("prioritized", "did you mean 'proportional'"),
        ("proportionl", "did you mean 'proportional'"),
        ("xyzzy", rf"Unknown scheme 'xyzzy'\. Choose one of {re.escape(str(sorted(SCHEMES)))}"),
        (LAP, r"not the class LAP: make an object, LAP\(\)"),
        (7, "Unknown scheme 7"),
    ):
        with pytest.raises(ValueError, match=message):
            make_scheme(scheme)


class HalfTree(SumTree):
    """Keeps half of each mass."""

    def write(self, slots: np.ndarray, values: np.ndarray) -> None:
        super().write(slots, values / 2)


class WithHalfTree(Proportional):
    def make_tree(self, capacity: int) -> SumTree:
        return HalfTree(capacity)


def test_a_tree_of_the_user_gets_all_masses():
    """Those of new transitions, too."""
    buffer = make_buffer(6, scheme=WithHalfTree(alpha=1.0, epsilon=1e-9))
    fill([buffer], 4)
    assert (buffer.masses[:4] == 0.5).all()
    buffer.update_priorities([0], [3.0])
    assert buffer.masses[0] == pytest.approx(1.5)


def test_settings_that_do_not_fit_the_scheme_are_refused():
    with pytest.raises(ValueError, match=r"Pass settings to the scheme object LAP\(.*'kappa': 0.5"):
        make_scheme(LAP(), kappa=0.5)
    with pytest.raises(ValueError, match=r"Pass settings to the scheme object LAP\(.*'kappa': 1.0"):
        make_buffer(scheme=LAP(kappa=0.5), kappa=1.0)  # also where it is the default


def test_epsilon_has_no_effect_on_ranks():
    assert repr(make_scheme("rank", epsilon=0.5)) == repr(RankBased())
