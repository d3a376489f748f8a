"""
Rescaled values, for returns whose size differs by orders of magnitude (Pohlen et al. 2018, arXiv 1805.11593; R2D2).

A network learns ``h(Q)``; its targets are ``h(r + gamma * h^-1(Q'))``.
"""

import torch as th

#: weight of the linear part, which gives h^-1 a bounded slope
DEFAULT_RESCALING = 1e-3


def rescale(values: th.Tensor, epsilon: float = DEFAULT_RESCALING) -> th.Tensor:
    """
    Compute ``h(x) = sign(x) (sqrt(|x| + 1) - 1) + epsilon x``. The form ``x / (sqrt(|x| + 1) + 1) + epsilon x`` is equal and
    loses no digits where x is small.

    :param values: in units of the return, of any shape
    :param epsilon: weight of the linear part, above 0
    :return: rescaled values, in the same shape
    """
    return values / ((values.abs() + 1.0).sqrt() + 1.0) + epsilon * values


def unscale(values: th.Tensor, epsilon: float = DEFAULT_RESCALING) -> th.Tensor:
    """
    Compute ``h^-1``. With ``u = sqrt(|x| + 1)``, ``h(x) = z`` is ``epsilon u^2 + u = |z| + 1 + epsilon``.

    The usual solution divides a small difference by 2 epsilon and errs by 1e-4 and more in float32. This one divides by a sum,
    and solves for ``v = u - 1``, so that it loses no digits where z is small: ``|x| = v (v + 2)``.

    :param values: rescaled, of any shape
    :param epsilon: weight of the linear part, above 0
    :return: values in units of the return, in the same shape; relative error below 5e-7 in float32
    """
    slope = 1.0 + 2.0 * epsilon
    v_per_z = 2.0 / (slope + (slope * slope + 4.0 * epsilon * values.abs()).sqrt())
    return values * v_per_z * (values.abs() * v_per_z + 2.0)
