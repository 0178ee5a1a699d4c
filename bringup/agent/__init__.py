"""What runs on a host: standard library only, Python 3.6 to 3.14. Imports nothing of the package."""
