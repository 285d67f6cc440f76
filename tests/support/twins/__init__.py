"""Tests of jobs that run twice: with the pytest plugin, and with a real broker.

A body takes a `World` and returns what the job has shown.  The worlds have one face: a body cannot
know in which of the two it runs.
"""

from twins.body import BODIES, Body
from twins.world import BROKER, BrokerWorld, PluginWorld, World

__all__ = ["BODIES", "BROKER", "Body", "BrokerWorld", "PluginWorld", "World"]
