"""Mutated logs, and what becomes of them: shared by the tests and the coverage-guided fuzzer."""
