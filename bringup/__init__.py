"""From bare GPU and NPU nodes to a verified endpoint over SSH, and back with one command."""

__version__ = "0.1.0"
