"""Kernel builds: recipes as data, named by content, built once per kind of host, proven by computing, spread."""
