"""Subcommands that look and change nothing; the words come from report."""
