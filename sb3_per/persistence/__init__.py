"""Buffers on disk: files that survive a kill at any moment, grow by what is new, and run no code when they are read."""
