"""Structures that hold masses, and draw slots in proportion to them."""
