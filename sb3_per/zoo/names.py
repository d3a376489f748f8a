"""Names of algorithms in RL Zoo: those of SBX are those of PyTorch after a prefix."""

_OF_SBX = "sbx_"


def uses_sbx(algo: str) -> bool:
    """
    Say whether an algorithm is one of SBX.

    :param algo: name of an algorithm, e.g. ``"sbx_per_sac"``, or ``"sbx_sac"`` for its stock class
    :return: whether it is
    """
    return algo.startswith(_OF_SBX)


def without_sbx(algo: str) -> str:
    """
    Find the algorithm of PyTorch of the same name, which has the same hyperparameters.

    :param algo: name of an algorithm, e.g. ``"sbx_per_sac"``
    :return: name of an algorithm, e.g. ``"per_sac"``
    """
    return algo.removeprefix(_OF_SBX)
