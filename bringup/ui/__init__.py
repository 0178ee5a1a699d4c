"""What a run looks like: live on a terminal, plain lines in a pipe, JSON, JUnit and HTML."""
