"""`python -m bellringer`."""

from bellringer.cli import main

main()
