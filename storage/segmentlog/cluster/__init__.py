"""What the brokers of a cluster know and hold together.

Its metadata (KRaft) and the settings of topics, the replicas in several directories as one log,
and mirrors of a directory.
"""
