"""From `deployment:` in the inventory to a launch plan: reading, cutting replicas, arithmetic, the site's layer."""
