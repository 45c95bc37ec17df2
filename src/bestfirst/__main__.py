"""`python -m bestfirst`: the same as the command `bestfirst`."""

from .cli import main

if __name__ == "__main__":
    main()
