"""Steps of optimizers."""

import torch as th


def minimise(
    loss: th.Tensor, optimizer: th.optim.Optimizer, max_grad_norm: float | None = None, only_own: bool = False
) -> None:
    """
    Take one step of an optimizer.

    :param loss: scalar
    :param optimizer: optimizer of the parameters to change
    :param max_grad_norm: largest norm of the gradient; ``None``: no clipping
    :param only_own: whether to compute gradients for the parameters of the optimizer alone. The actor's loss passes through
        the critic, whose gradient is not used and would take half of the backward pass
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    optimizer.zero_grad()
    loss.backward(inputs=parameters if only_own else None)
    if max_grad_norm is not None:
        th.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    optimizer.step()
