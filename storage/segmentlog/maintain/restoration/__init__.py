"""Put the records of a lost cluster into the log directories of the brokers of another cluster."""
