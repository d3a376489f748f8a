"""Name the algorithm that fits the actions of an environment."""

from gymnasium import spaces

# Stock classes that SB3, sb3-contrib and SBX have for continuous and for discrete actions.
_CONTINUOUS = ("SAC", "TD3", "DDPG", "TQC", "CrossQ")
_DISCRETE = ("DQN", "QRDQN")


def require_fitting_actions(cls: type, space: spaces.Space) -> None:
    """
    Check that an algorithm takes the actions of its environment. The stock classes do so later, and name no other algorithm.

    :param cls: class of the algorithm
    :param space: space of the actions
    :raises AssertionError: as in SB3, but with the name of the class that fits
    """
    bases = {base.__name__ for base in cls.__mro__}
    kind = "PERRecurrent" if any(name.startswith("PERRecurrent") for name in bases) else "PER"
    if isinstance(space, spaces.Discrete) and not bases.isdisjoint(_CONTINUOUS):
        raise AssertionError(f"{cls.__name__} is for continuous actions, and this environment has {space}: take {kind}DQN")
    if isinstance(space, spaces.Box) and not bases.isdisjoint(_DISCRETE):
        raise AssertionError(f"{cls.__name__} is for discrete actions, and this environment has {space}: take {kind}SAC")
