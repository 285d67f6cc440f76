"""Open a writer, and carry a write job from its beginning to its commit."""
