"""Logs for every Kafka client, in Kafka's protocol, without a broker."""
