"""The cells of `codetr sweep`: plan, files, processes, measurements and report."""
