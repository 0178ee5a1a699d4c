#!/usr/bin/env python3
import json
import sys

if sys.argv[1] == "--list":
    print(json.dumps({"old": {"hosts": ["o1", "o2"]}}))
elif sys.argv[2] == "o1":
    print(json.dumps({"asked": sys.argv[2]}))
