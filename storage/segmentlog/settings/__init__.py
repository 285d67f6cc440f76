"""Settings of topics: what is given, what a cluster or a directory says, and Kafka's defaults."""
