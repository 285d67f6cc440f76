"""Mutated logs, and what becomes of them: shared by the fuzz tests and the coverage-guided fuzzer."""
