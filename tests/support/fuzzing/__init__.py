"""Mutated logs and their outcomes, for the tests and for the coverage-guided fuzzer."""
