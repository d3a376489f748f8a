"""Steps of optimizers."""

import torch as th


def minimise(loss: th.Tensor, optimizer: th.optim.Optimizer, max_grad_norm: float | None = None) -> None:
    """
    Take one step of an optimizer, with the gradient for its own trainable parameters alone.

    The actor's loss passes through the critics. Their gradient is not used, and would take half of the backward pass.

    :param loss: scalar
    :param optimizer: optimizer of the parameters to change. If all of them are frozen, nothing happens
    :param max_grad_norm: largest norm of the gradient; ``None``: no clipping
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    optimizer.zero_grad()
    if not parameters:
        return
    loss.backward(inputs=parameters)
    if max_grad_norm is not None:
        th.nn.utils.clip_grad_norm_(parameters, max_grad_norm)
    optimizer.step()


def use_fast_steps(optimizers: list[th.optim.Optimizer]) -> None:
    """
    Let optimizers step all parameters in a few calls, as PyTorch does on GPUs. The numbers stay the same, and so does a choice
    of the user.

    :param optimizers: optimizers to change
    """
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            is_undecided = group.get("foreach", False) is None
            if is_undecided and not group.get("fused"):
                group["foreach"] = True
