"""`python -m sawlog.cli` is `sawlog`. As a script for spark-submit, this file is `sawlog pipeline`.

spark-submit runs a script outside its package: the import is absolute, and the modules next to this file must not hide
Python's own, such as `inspect`.
"""

import os
import sys

if __name__ == "__main__":
    if not __package__:
        here = os.path.dirname(os.path.realpath(__file__))
        sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]
        sys.argv.insert(1, "pipeline")
    from sawlog.cli import main

    main()
