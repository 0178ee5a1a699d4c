"""The verbs."""

import os
import sys

# Invoke forbids Python to keep compiled modules, for the sake of tasks.py; ours would be compiled anew at every call
sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
