"""Let `python -m patchset` run the command line."""

from patchset.cli import main

if __name__ == "__main__":
    main()
