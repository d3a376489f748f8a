"""Campaigns that ask whether prioritized replay helps, and their reports."""
