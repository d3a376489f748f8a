"""What code for SB3's buffers finds in a prioritized one: arrays, ``pos`` and ``full``, and methods that it may replace."""

from typing import Any

import numpy as np
import torch as th
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from sb3_per.buffers import conversion, hooks, inputs
from sb3_per.buffers.transition_set import TransitionSet
from sb3_per.sampling.sampler import Sampler
from sb3_per.storage.ring import Ring
from sb3_per.storage.storage import ARRAY_NAMES, Layout, Storage


def _array(name: str) -> Any:
    """
    Make an attribute of SB3's buffers that shows what the storage holds.

    SB3's constructor assigns an array before there is a storage, see :meth:`SB3Attributes._init_with_one_row`.

    :param name: name of the attribute
    :return: a property; the storage uses what is assigned to it
    """

    def shown(self: "SB3Attributes") -> Any:
        array = getattr(self.storage, name) if self.has_storage else vars(self).get(name)
        if array is None:
            raise AttributeError(f"This {type(self).__name__} does not store {name}")
        return array

    def assign(self: "SB3Attributes", value: Any) -> None:
        if self.has_storage:
            self.assign_array(name, value)
        else:
            vars(self)[name] = value

    return property(shown, assign)


class SB3Attributes(ReplayBuffer):
    """
    A buffer of SB3 whose arrays are those of a storage, and whose ``pos`` and ``full`` are those of a ring. The base class of
    all prioritized buffers, which set what stands below.
    """

    #: what :meth:`add` stores
    experience: TransitionSet
    #: what is in a slot
    storage: Storage
    #: held by all methods that read or change transitions
    lock: Any

    # SB3's arrays. An array that is assigned is used in place of the present one.
    observations = _array("observations")
    next_observations = _array("next_observations")
    actions = _array("actions")
    rewards = _array("rewards")
    dones = _array("dones")
    timeouts = _array("timeouts")
    infos = _array("infos")

    # Whether a user has replaced a method that turns arrays into batches.
    _user_changes_batches = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        hooks.require_hooks_are_called(cls)
        cls._user_changes_batches = any(hooks.is_overridden_in(cls, name) for name in hooks.BATCH_HOOKS)

    def __setattr__(self, name: str, value: Any) -> None:
        """Treat a method that is set on this object like one of its class."""
        if name in hooks.REFUSED:
            raise AttributeError(hooks.refusal(type(self), name))
        super().__setattr__(name, value)
        if name in hooks.BATCH_HOOKS:
            self._user_changes_batches = True

    # ---- construction

    def _init_with_one_row(
        self, observation_space: spaces.Space, action_space: spaces.Space, device: th.device | str, n_envs: int, *args: Any
    ) -> Layout:
        """
        Call SB3's constructor, which allocates all rows, for a single row. Take the shapes and types of its arrays, and delete
        them: the storage has its own.

        :param observation_space: SB3's, as the following ones
        :param action_space: of the environment
        :param device: of the batches
        :param n_envs: number of environments
        :param args: SB3's arguments after these
        :return: the layout of the transitions
        """
        size_of_one_row = n_envs
        self._init_sb3(size_of_one_row, observation_space, action_space, device, n_envs, *args)
        layout = conversion.layout_of(self)
        for name in ARRAY_NAMES:
            vars(self).pop(name, None)
        return layout

    def _init_sb3(self, *args: Any) -> None:
        """Call SB3's constructor with its arguments."""
        super().__init__(*args)

    @property
    def has_storage(self) -> bool:
        """Whether there is a storage already: not while SB3's constructor runs."""
        return "storage" in vars(self)

    def assign_array(self, name: str, value: Any) -> None:
        """
        Use an array, or a dictionary of them, in place of one of SB3's: ``buffer.rewards = array`` calls it.

        :param name: name of the attribute
        :param value: of the same shape
        :raises ValueError: for another shape, or rewards that are NaN or infinite; nothing has changed then
        """
        with self.lock:
            checked = self.storage.checked(name, value)
            if name == "rewards":
                ring = self.ring
                is_held = ring.ids_at(np.arange(ring.capacity).reshape(ring.n_rows, ring.n_envs)) >= 0
                inputs.require_finite_rewards(np.where(is_held, checked, 0.0))
            self.storage.assign(name, checked)

    # ---- parts and position

    @property
    def ring(self) -> Ring:
        """Which transition is in which slot."""
        return self.experience.ring

    @property
    def sampler(self) -> Sampler:
        """The mass of a slot."""
        return self.experience.sampler

    @property
    def pos(self) -> int:
        """Row that is written next. Where environments stand at different steps, that of the slowest."""
        return self.ring.pos

    @pos.setter
    def pos(self, value: int) -> None:
        if self.has_storage:  # SB3's constructor sets it before there is one
            self._set_position(value, self.full)

    @property
    def full(self) -> bool:
        """Whether every slot holds a transition."""
        return self.ring.full

    @full.setter
    def full(self, value: bool) -> None:
        if self.has_storage:
            self._set_position(self.pos, value)

    def _set_position(self, pos: int, full: bool) -> None:
        """
        Make all rows before ``pos``, or all rows, new transitions, which were written into SB3's arrays by hand.

        :param pos: row that is written next
        :param full: whether all rows hold transitions
        :raises ValueError: for a row outside of the buffer, or a reward that is NaN or infinite; nothing has changed then
        """
        if not 0 <= pos < self.buffer_size:
            raise ValueError(f"pos must be a row in [0, {self.buffer_size}), not {pos}: a full buffer has full=True, too")
        n_rows = self.buffer_size if full else pos
        inputs.require_finite_rewards(self.rewards[:n_rows])
        n_present = pos
        if full:
            n_present += self.buffer_size
        with self.lock:
            self.experience.adopt_rows(n_present)
