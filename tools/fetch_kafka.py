"""Fetch Kafka's own jars (broker, tools and their dependencies) with Maven, into a cache directory; prints its path.

    python tools/fetch_kafka.py              for tests/interop/test_kafka_tools.py, which is skipped without them
    python tools/fetch_kafka.py --connector  Spark's Kafka source as well: a row of `make bench-spark`

Maven finds its repository by its own settings. The directory is $SAWLOG_KAFKA_JARS, or below the user's cache. Existing
jars are not fetched again.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

VERSION = "4.3.1"

#: The broker, its tools, and a logging backend that discards everything.
_PROJECT = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>sawlog</groupId>
  <artifactId>kafka-jars</artifactId>
  <version>1</version>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka-tools</artifactId><version>{VERSION}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""

#: Spark's Kafka source. Not every repository has every version; these match each other and Spark 4.3.
_CONNECTOR = {
    "org.apache.spark:spark-sql-kafka-0-10_2.13": ("4.3.0", "4.2.0"),
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13": ("4.3.0", "4.2.0", "4.0.0"),
    "org.apache.commons:commons-pool2": ("2.12.0",),
    "org.apache.kafka:kafka-clients": (VERSION,),
}


def jars_directory() -> Path:
    """Return the directory of the jars, which may not exist yet."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("SAWLOG_KAFKA_JARS") or cache / "sawlog" / f"kafka-{VERSION}")


def connector_jars() -> list[Path]:
    """Return the jars of Spark's Kafka source; none if they were not fetched."""
    return sorted((jars_directory() / "connector").glob("*.jar"))


def _maven(*arguments: str) -> bool:
    """Run Maven; return whether it succeeded."""
    maven = shutil.which("mvn")
    if maven is None:
        raise SystemExit("Maven (mvn) is needed to fetch Kafka's jars; install it, or copy them yourself")
    return subprocess.run([maven, "-q", "-B", *arguments], check=False).returncode == 0


def fetch(target: Path) -> None:
    """Copy the jars with Maven; the directory appears when it is complete."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        project, jars = Path(scratch) / "pom.xml", Path(scratch) / "jars"
        project.write_text(_PROJECT, encoding="utf-8")
        wanted = ["-f", str(project), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        if not _maven(*wanted, f"-DoutputDirectory={jars}"):
            raise SystemExit("Kafka's jars could not be fetched")
        if not target.exists():
            jars.rename(target)
        for jar in jars.glob("*.jar"):  # the directory of an earlier version of this script, with fewer jars
            jar.replace(target / jar.name)


def fetch_connector(target: Path) -> None:
    """Fetch Spark's Kafka source, in the newest version that is available."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        for name, versions in _CONNECTOR.items():
            copied = (
                _maven("dependency:copy", f"-Dartifact={name}:{v}", f"-DoutputDirectory={scratch}") for v in versions
            )
            if not any(copied):
                raise SystemExit(f"{name} is not available in any of the versions {', '.join(versions)}")
        shutil.copytree(scratch, target)


def main() -> None:
    """Fetch the jars unless they exist."""
    arguments = [each for each in sys.argv[1:] if each != "--connector"]
    target = Path(arguments[0]) if arguments else jars_directory()
    if not (any(target.glob("kafka_*.jar")) and any(target.glob("kafka-tools-[0-9]*.jar"))):
        fetch(target)
    connector = target / "connector"
    if "--connector" in sys.argv and not connector.exists():
        fetch_connector(connector)
    print(target)


if __name__ == "__main__":
    main()
