"""A new user's first hour: the snippets of the READMEs, typed in a bare virtual environment."""
