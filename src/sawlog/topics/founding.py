"""Whether a directory may become a store: what is already there is never touched."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ..errors import InvalidConfig
from ..log.files import names as log_names
from ..storage import Directory
from .names import LOCK, RESTORE, RESTORE_LOCK, STAGING, STORE, TMP, TOPICS

#: What may be in a directory that becomes a store: left by a crash during its creation, or by the file system.
_NOTHING = frozenset({LOCK, f"{STORE}{TMP}", RESTORE, f"{RESTORE}{TMP}", RESTORE_LOCK, "lost+found"})


def refuse_strangers(root: Directory) -> None:
    """Raise `InvalidConfig` if a directory contains anything but an unfinished store."""
    names = root.names()
    children = [name for name in root.children() if name not in (TOPICS, STAGING) or not _is_empty(root, name)]
    if not {*names, *children} - _NOTHING:
        return
    if is_log(names):
        raise InvalidConfig(
            f"{root.path} holds one log, not a store of topics: use Log.open for it, or another directory"
        )
    found = ", ".join([*names, *(f"{name}/" for name in children)][:5])
    raise InvalidConfig(
        f"{root.path} is neither empty nor a store: it holds {found}; choose an empty or a new directory"
    )


def refuse_objects(root: Directory) -> None:
    """Raise `InvalidConfig` if a directory contains the objects of a store on object storage (`file://`). Its file has
    no checksum, so it must not be taken for a damaged one."""
    try:
        fields = json.loads(root.read(STORE))
    except ValueError:
        return
    if isinstance(fields, dict) and "kind" in fields:
        raise InvalidConfig(
            f"{root.path} contains the objects of a store on object storage: open it by its address, "
            f"file://{Path(root.path).absolute()}"
        )


def _is_empty(root: Directory, name: str) -> bool:
    directory = root.child(name)
    try:
        return not directory.names() and not directory.children()
    finally:
        directory.close()


def is_log(names: Iterable[str]) -> bool:
    """Whether these are the files of one log."""
    return any(log_names.segment_base(name) is not None for name in names)
