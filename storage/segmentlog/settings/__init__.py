"""Settings of topics: from the call, from a cluster or a directory, and Kafka's defaults.

`cluster_metadata` reads the metadata log of a cluster (KRaft).  A new kind of its records is a
schema there.
"""
