"""`python -m candlepower`: the command line."""

from ._binary import main

main()
