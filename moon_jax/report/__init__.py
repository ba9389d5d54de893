"""Pictures and tables of what was run."""
