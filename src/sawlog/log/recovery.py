"""Moved to `sawlog.log.maintain.recovery`. This name stays until version 0.4."""

from __future__ import annotations

import sys

from .maintain import recovery

sys.modules[__name__] = recovery
