"""Read, check, import and write the logs of other systems.

```python
from sawlog import interop

interop.detect("/srv/laminarmq/log")                       # Detection(format="laminarmq", kind="partition", ...)
with interop.open("/srv/laminarmq/log") as log:            # read only; scan, read, scan_arrow as a Log has them
    for record in log.scan(): ...
    print(*log.report, sep="\\n")                           # what was wrong, and what was done about it
interop.import_log("/srv/laminarmq/log", store, topic="orders")    # keeps offsets; run it again to continue
interop.export_log(store["orders"].partition(0), "out", format="gumlog")
```

One module per system; its docstring draws the bytes. `docs/interop.md` says what is recovered and what is not.
"""

from __future__ import annotations

from .damage import Finding, ForeignReport, Kind
from .detection import detect, formats
from .detection import open_log as open
from .foreign import Detection, ExportReport, ForeignLog, Format, Place
from .transfer import ImportReport, LogImport, export_log, export_topic, import_log

__all__ = [
    "Detection",
    "ExportReport",
    "Finding",
    "ForeignLog",
    "ForeignReport",
    "Format",
    "ImportReport",
    "Kind",
    "LogImport",
    "Place",
    "detect",
    "export_log",
    "export_topic",
    "formats",
    "import_log",
    "open",
]
