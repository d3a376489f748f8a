"""Helpers without a subject of their own."""
