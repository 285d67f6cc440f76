"""The files that make a commit atomic, and tell readers of it."""
