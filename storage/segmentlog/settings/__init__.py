"""Settings of topics: from the call, from a cluster or a directory, and Kafka's defaults."""
