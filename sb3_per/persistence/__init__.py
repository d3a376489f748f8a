"""Save models and buffers to files that survive a kill, grow only by what is new, and run no code when they are loaded."""
