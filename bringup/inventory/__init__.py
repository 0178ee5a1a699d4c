"""Hosts, groups, variables and patterns: YAML, INI, JSON and scripts, as Ansible reads them."""
