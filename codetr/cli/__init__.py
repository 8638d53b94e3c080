"""The command line: one front door for every command of the repository."""
