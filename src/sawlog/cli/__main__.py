"""`python -m sawlog.cli`: the same as `sawlog`."""

from . import main

if __name__ == "__main__":
    main()
