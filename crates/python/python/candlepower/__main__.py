"""The command line, for `python -m candlepower`."""

from ._binary import main

main()
