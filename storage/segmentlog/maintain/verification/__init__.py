"""Read all of a log, and compare its batches, indexes, markers and checkpoints."""
