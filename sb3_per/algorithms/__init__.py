"""Prioritized algorithms, one file each."""
