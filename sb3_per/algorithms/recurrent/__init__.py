"""
Recurrent algorithms: networks, policies, and training on windows.

- ``dqn.py`` and ``sac.py``: the algorithms; ``mixin.py``: what they share, acting and learning with recurrent states
- ``networks.py``: an LSTM before a network of SB3, and the flow of an update
- ``policies.py``: the base class of policies; ``q_policies.py``: those of DQN; ``sac_policies.py``: those of SAC
- ``value_rescaling.py``: rescaled values, for returns of very different size
"""
