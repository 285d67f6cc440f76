"""The command line: show and repair log directories, and check whether this machine can read them.

The library never imports this package, which needs ``typer`` and ``rich``; the library does not.
"""
