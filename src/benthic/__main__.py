"""`python -m benthic` is the `benthic` command."""

from benthic.cli.command import main

if __name__ == "__main__":
    main()
