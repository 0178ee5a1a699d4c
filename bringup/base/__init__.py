"""What every room may use: errors with file and line, YAML, secrets, results, verdicts, events."""
