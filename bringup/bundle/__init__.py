"""Offline bundles: what a deployment needs, gathered where there is a network, proven and used where there is none."""
