"""
The command line ``sb3-per``.

- ``main.py``: all commands; those of RL Zoo are in :mod:`sb3_per.zoo`
- ``compare.py``: options of ``sb3-per compare``, which is in ``sb3_per/compare/``
- ``convert.py``: ``sb3-per convert``; ``doctor.py``: ``sb3-per doctor``
"""
