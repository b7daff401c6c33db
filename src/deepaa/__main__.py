"""`python -m deepaa`: the command line."""

from deepaa.cli.app import main

if __name__ == "__main__":
    main()
