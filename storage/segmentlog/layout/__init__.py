"""Names, checkpoints and indexes of a log directory, as files lie on a disk."""
