"""The start of a broker, decided from its disks before it happens."""
