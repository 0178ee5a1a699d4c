"""The contract: what the endpoint must answer, judged on its answers alone."""
