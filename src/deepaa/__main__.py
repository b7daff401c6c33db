"""`python -m deepaa`: the command line."""

from deepaa.cli import main

if __name__ == "__main__":
    main()
