"""Read all of a log, and compare everything that says something about it."""
