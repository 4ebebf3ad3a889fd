"""Moved to `sawlog.log.write.commit`. This name stays until version 0.4."""

from __future__ import annotations

import sys

from .write import commit

sys.modules[__name__] = commit
