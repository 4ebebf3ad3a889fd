# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Everything that is done per record, compiled: see `__init__.py`, which says the same and runs where this is not."""

# One module of all units: a call from one unit into another is a call within C, and small ones are no calls at all.
# Each unit imports from the others only where it is interpreted.

import cython  # from here on this name is the compiler's own, whatever a unit imports under it

COMPILED = cython.compiled

include "declarations.pxi"

sawlog_crc_prepare()

include "primitives.py"
include "walk.py"
include "batches.py"
include "records.py"
include "builder.py"
include "arrow.py"
include "partitions.py"
include "keys.py"
include "frames.py"
include "slots.py"
include "sparse.py"
include "fields.py"
include "lookup.py"
include "placing.py"
include "json.py"
