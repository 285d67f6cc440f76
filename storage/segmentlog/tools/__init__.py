"""The command line: what is in a log directory, and whether this machine can read it.

Nothing of the library imports this package: it needs ``typer`` and ``rich``, the rest does not.
"""
