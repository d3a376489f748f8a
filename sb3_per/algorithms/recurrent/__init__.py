"""Agents with memory: networks, policies, and what acting and learning with recurrent states needs."""
