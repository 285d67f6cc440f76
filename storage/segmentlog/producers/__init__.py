"""Idempotent producers: their snapshots, their state, their sequences."""
