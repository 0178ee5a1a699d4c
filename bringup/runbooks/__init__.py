"""Runbooks: Markdown that a person can follow by hand, and that bringup can follow step by step."""
