"""Steps of optimizers."""

import contextlib
from collections.abc import Iterator

import torch as th


def minimise(loss: th.Tensor, optimizer: th.optim.Optimizer, max_grad_norm: float | None = None) -> None:
    """
    Take one step of an optimizer.

    :param loss: scalar
    :param optimizer: optimizer of the parameters to change
    :param max_grad_norm: largest norm of the gradient; ``None``: no clipping
    """
    optimizer.zero_grad()
    loss.backward()
    if max_grad_norm is not None:
        th.nn.utils.clip_grad_norm_(_parameters_of(optimizer), max_grad_norm)
    optimizer.step()


def step_together(optimizer: th.optim.Optimizer) -> None:
    """
    Let an optimizer step all its parameters in a few calls, which PyTorch does by itself only on GPUs. The numbers stay the
    same.

    :param optimizer: changed in place, unless its constructor was given ``foreach`` or ``fused``
    """
    for group in optimizer.param_groups:
        if "foreach" in group and group["foreach"] is None and not group.get("fused"):
            group["foreach"] = True


@contextlib.contextmanager
def frozen(optimizer: th.optim.Optimizer) -> Iterator[None]:
    """
    Compute no gradient for the parameters of an optimizer; gradients still flow through them.

    The actor's loss passes through the critic, whose own gradient is not used and takes half of the backward pass.

    :param optimizer: optimizer of the parameters to leave out
    """
    parameters = [parameter for parameter in _parameters_of(optimizer) if parameter.requires_grad]
    for parameter in parameters:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.requires_grad_(True)


def _parameters_of(optimizer: th.optim.Optimizer) -> list[th.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
