"""
Helpers without a subject of their own.

- ``checks.py``: checks of arguments; ``arguments.py``: options of command lines; ``colours.py``: colours of pictures
- ``compiled.py``: kernels of numba; ``lock.py``: a lock of objects that are copied and pickled
- ``origin.py``: whether code is of this package, of a library or of a user; ``parents.py``: whether the classes of libraries
  have the methods that are overridden here
"""
