"""What users see of a run while it trains, and the log that they read later."""
