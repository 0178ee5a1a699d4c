"""Keeping engine processes on a host: what /proc says, records, and the two managers. Python 3.6."""
