"""Raw text to typed facts. A parser raises Unread for what it cannot read and never guesses."""
