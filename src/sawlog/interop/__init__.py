"""Read, check, import and write the logs of other systems.

```python
from sawlog import interop

interop.detect("/srv/laminarmq/log")                       # Detection(format="laminarmq", kind="partition", ...)
with interop.open("/srv/laminarmq/log") as log:            # read only; scan, read, scan_arrow as in a Log
    for record in log.scan(): ...
    print(*log.report, sep="\\n")                           # the defects, and how they were handled
interop.import_log("/srv/laminarmq/log", store, topic="orders")    # keeps offsets; call again to continue
interop.export_log(store["orders"].partition(0), "out", format="gumlog")
```

Each system has a module whose docstring draws the bytes. `docs/interop.md` lists what is recovered and what is not.
"""

from __future__ import annotations

from .detection import detect, formats
from .detection import open_log as open
from .exporting import export_log, export_topic
from .foreign import Detection, ExportReport, Finding, ForeignLog, ForeignReport, Format, Kind, LogLocation
from .importing import ImportReport, LogImport, import_log

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
    "LogLocation",
    "detect",
    "export_log",
    "export_topic",
    "formats",
    "import_log",
    "open",
]
