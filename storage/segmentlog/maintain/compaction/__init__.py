"""Keep the last record of each key, as a broker's log cleaner does; erase keys."""
