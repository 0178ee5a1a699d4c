"""Gates: what must hold of a running release before it goes further, with pass lines that a team edits."""
