"""A pipe to a host: SSH through Fabric, or a local process; and the agent's session over it."""
