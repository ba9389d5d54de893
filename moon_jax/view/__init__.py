"""What users see of a run while it trains, and the log that they read later.

`progress.Progress` is the one interface; it prints lines of text where there is
no terminal. `status` holds the values shown, `screen` renders them, `terminal`
draws them on a terminal, and `run_log` writes log.txt.
"""
