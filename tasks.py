"""The Invoke namespace: `invoke --list` shows it."""

from bringup.cli.namespace import namespace

ns = namespace()
