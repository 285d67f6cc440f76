"""What is in the topics of a log directory: figures, sketches, and what one would change."""
