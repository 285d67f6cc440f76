"""The files that make a commit atomic, and by which readers notice it."""
