"""A table proved against the log that it was made from: what is missing, repeated or wrong."""
