"""What leaves a log directory: topics; later what retention and compaction take."""
