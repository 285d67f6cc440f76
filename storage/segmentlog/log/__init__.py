"""One partition on disk: its segments and where they end, indexes, checkpoints, producers."""
