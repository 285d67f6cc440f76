"""What is wrong with log directories, decided once: rules, each for one subject.

A rule finds the faults of its subject.  `verify` reports them, `preflight` says what a starting
broker does about them, and `recover` carries out what mends them.
"""
