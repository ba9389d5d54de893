"""What tests share: federations, runs, commands, pages and references."""
