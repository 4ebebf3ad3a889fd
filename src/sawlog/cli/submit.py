"""The script for `spark-submit`: runs `sawlog pipeline` with its arguments. `sawlog pipeline script` prints its path.

A script is not part of a package: its import is absolute, and the modules next to it must not hide Python's own.
"""

import os
import sys

if __name__ == "__main__":
    here = os.path.dirname(os.path.realpath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]
    from sawlog.cli import main

    sys.argv.insert(1, "pipeline")
    main()
