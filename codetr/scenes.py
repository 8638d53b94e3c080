"""`python -m codetr.scenes`, the former name of `python -m tools.scenes`, in a clone of the repository."""

import sys

from tools.scenes.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
