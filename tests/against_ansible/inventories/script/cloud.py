#!/usr/bin/env python3
import json
import sys

if sys.argv[1] == "--list":
    print(json.dumps({
        "head": {"hosts": ["c1"], "vars": {"a": 1}},
        "workers": {"hosts": ["c2", "c3"], "children": ["spare"]},
        "spare": {"hosts": []},
        "_meta": {"hostvars": {"c1": {"ansible_host": "198.18.0.11"}, "c2": {"x": [1, 2]}}},
    }))
