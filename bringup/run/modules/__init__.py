"""Controller halves of the general modules, and the table of what these modules take."""
