"""A new user's first hour: what the READMEs say, typed on a bare virtual environment."""
