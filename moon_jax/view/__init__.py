"""What users see of a run while it trains, and the log that they read later.

`progress.Progress` is the one interface. `status` holds the values shown,
`screen` renders them, `terminal` draws them on a terminal, `lines` prints them
elsewhere, and `run_log` writes log.txt.
"""
