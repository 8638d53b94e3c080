"""Verifying replacements and whole models by numbers, and reporting what happened."""
