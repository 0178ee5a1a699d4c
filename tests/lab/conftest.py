"""Fixtures that several tests of the lab share."""

from bundle_office import index, office

__all__ = ["index", "office"]
