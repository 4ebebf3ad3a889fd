"""Fetch Kafka's own jars (broker, tools and what they need) with Maven, into a cache directory; prints where.

    python tools/fetch_kafka.py [DIRECTORY]

For tests/interop/test_kafka_tools.py, which is skipped without them. Maven finds its repository by its own settings.
The directory is $SAWLOG_KAFKA_JARS, or below the user's cache. Nothing is fetched that is there already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "4.1.0"

#: The broker (with its tools), and somewhere for its logging to go: nowhere.
_PROJECT = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sawlog</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


def jars_directory() -> Path:
    """Where the jars are, or will be."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("SAWLOG_KAFKA_JARS") or cache / "sawlog" / f"kafka-{VERSION}")


def fetch(target: Path) -> None:
    """Have Maven copy them; the directory appears when it is whole."""
    maven = shutil.which("mvn")
    if maven is None:
        raise SystemExit("Maven (mvn) is needed to fetch Kafka's jars; install it, or copy them yourself")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        project, jars = Path(scratch) / "pom.xml", Path(scratch) / "jars"
        project.write_text(_PROJECT, encoding="utf-8")
        command = [maven, "-q", "-B", "-f", str(project), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        subprocess.run([*command, f"-DoutputDirectory={jars}"], check=True)
        jars.rename(target)


def main() -> None:
    """Fetch them unless they are there."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else jars_directory()
    if not any(target.glob("kafka_*.jar")):
        fetch(target)
    print(target)


if __name__ == "__main__":
    main()
