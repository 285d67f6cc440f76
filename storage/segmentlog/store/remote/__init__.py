"""Copies of log directories in object stores: URLs, clients of stores, requests, what is kept."""
