"""Logs, log directories, and what a read of them needs: look-ups, slices, scans."""
