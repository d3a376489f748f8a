"""
Save models and buffers to files that survive a kill, grow only by what is new, and run no code when they are loaded.

- ``buffer_files.py``: a buffer in a folder, saved again and again, and loaded
- what is saved of it: ``streams.py``, rows that do not change any more, with ``ring.py`` and ``array_rows.py``;
  ``state_file.py``, values that may change; ``facts.py``, what tells whether the files fit another buffer
- ``generations.py``: the files of a folder: arrays, checksums, and which of them belong to the newest save
- ``atomic.py``: files that are there completely or not at all
- ``checkpoint_callback.py``: saves during training; ``convert.py``: from SB3's pickle to such a folder
"""
