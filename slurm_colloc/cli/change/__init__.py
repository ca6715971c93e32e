"""Subcommands that change something, or wait for it; the work is done elsewhere."""
