"""Put the records of a lost cluster into the log directory of a broker of another cluster."""
