"""The shipped suites explain their failures like any test of ours."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("sawlog.testing.suites")
