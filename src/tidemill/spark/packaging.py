"""Tidemill for executors that do not have it: files that Spark takes along.

`package_zip` has Tidemill alone, for executors that have what it depends on. Python imports it as it is.

`archive_zip` has also the compiled packages that tasks need, as they are installed here. Python cannot import those from a
zip, but Spark unpacks its archives: executors then need nothing but the same version of Python on the same platform.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path

# What source and sink import in a task. Brokers need uvloop, tasks do not; Spark brings pyspark and py4j.
DEPENDENCIES = ("crc32c", "cramjam", "numpy", "pyarrow")
# A hundred megabytes of pyarrow are for those who compile against it or test it.
_LEFT_OUT = {"__pycache__", "include", "tests"}


def package_zip(directory: Path) -> Path:
    """Tidemill as it is installed here, for `addPyFile` or `spark-submit --py-files`."""
    return _write(directory / "tidemill.zip", _tidemill())


def archive_zip(path: Path) -> Path:
    """Tidemill and what its tasks need, for `spark.archives` or `spark-submit --archives`."""
    return _write(path, [*_tidemill(), *(each for name in DEPENDENCIES for each in _installed(name))])


def _write(path: Path, files: Iterator[tuple[Path, Path]] | list[tuple[Path, Path]]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for source, name in files:
            archive.write(source, str(name))
    return path


def _tidemill() -> Iterator[tuple[Path, Path]]:
    import pyspark_tidemill
    import tidemill

    for module in (tidemill, pyspark_tidemill):
        assert module.__file__ is not None
        root = Path(module.__file__).parent
        for source in sorted(root.rglob("*.py")):
            yield source, Path(root.name) / source.relative_to(root)


def _installed(name: str) -> Iterator[tuple[Path, Path]]:
    for each in distribution(name).files or ():
        source = Path(str(each.locate()))
        # Scripts are outside of site-packages.
        if ".." not in each.parts and not _LEFT_OUT.intersection(each.parts) and source.is_file():
            yield source, Path(str(each))
