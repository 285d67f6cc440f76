"""The way in: staged batches, and the durable steps that make them part of the logs."""
