"""
Prioritized algorithms, one file each: ``sac.py``, ``td3.py`` (with DDPG), ``dqn.py``, ``qrdqn.py``, ``tqc.py``, ``crossq.py``;
with an LSTM, ``recurrent/``.

What they share:

- ``torch_loop.py``: the training loop of PyTorch, and functions to write an update with
- ``base.py``: what the loops of PyTorch and JAX share: the buffer, its settings, files, and the log
- functions of a model: ``buffer_choice.py``, ``loaded_buffer.py``, ``checkpoints.py``, ``arguments.py``, ``pretraining.py``;
  ``metrics.py``: means of a call of ``train``
- ``collecting.py``: environments that act by themselves; ``wrapper_order.py``: the order of ``VecNormalize`` and others
"""
