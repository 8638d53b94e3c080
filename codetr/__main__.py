"""`python -m codetr`, the same as the command `codetr`."""

import sys

from codetr.cli import main

sys.exit(main())
