"""The checks of this machine and Python: versions, packages, memory, open files."""

from __future__ import annotations

import importlib.metadata
import platform
import resource
import sys
from pathlib import Path

from tidemill import __version__
from tidemill.cli.checks.finding import Finding, ok, warning
from tidemill.cli.table import size_text
from tidemill.errors import TidemillError

_PYTHON_MIN = (3, 11)
_MEMORY_BYTES_MIN = 512 << 20
# The usual setting for Kafka. A segment takes up to three files, a client one.
FILES_MIN = 10_000
# Extra: its packages, and their purpose.
_EXTRAS = {
    "celery": (("celery", "kombu"), "Celery's transport"),
    "claims": (("obstore",), "large payloads in a bucket"),
    "client": (("confluent-kafka",), "consume --group and tidemill.Client"),
    "gateway": (("confluent-kafka", "httptools", "starlette", "uvicorn"), "the REST gateway and the console"),
    "metrics": (("prometheus-client",), "serve --status"),
    "security": (("cryptography",), "security init, PKCS12 key stores and OAUTHBEARER"),
    "spark": (("numpy", "pandas", "pyarrow", "pyspark"), "pipelines"),
}


def machine(with_java: bool) -> list[Finding]:
    findings = [_python(), _packages(), *(_extra(name) for name in _EXTRAS), _memory(), _open_files()]
    if with_java:
        findings.append(_java())
    return findings


def _python() -> Finding:
    text = f"Tidemill {__version__} on Python {platform.python_version()}, {platform.system()} {platform.release()}"
    if sys.version_info < _PYTHON_MIN:
        return warning("python", text, "install Python 3.11 or newer")
    return ok("python", text)


def _packages() -> Finding:
    names = ("uvloop", "crc32c", "cramjam")
    versions = {name: _version(name) for name in names}
    text = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        remedy = "pip install --force-reinstall tidemill"
        return warning("packages", f"{', '.join(missing)} missing; {text or 'none'} there", remedy)
    return ok("packages", text)


def _extra(name: str) -> Finding:
    packages, purpose = _EXTRAS[name]
    versions = {package: _version(package) for package in packages}
    missing = [package for package, version in versions.items() if version is None]
    if missing:
        text = (
            f"not installed ({', '.join(missing)}); needed only for {purpose}: pip install 'tidemill[{name}]'"
        )
        return ok(f"extra {name}", text)
    return ok(f"extra {name}", ", ".join(f"{package} {version}" for package, version in versions.items()))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _java() -> Finding:
    from tidemill.spark import session

    try:
        java = session.find_java()
    except TidemillError as error:
        return ok("java", f"needed only for pipelines, and not usable: {error}")
    if text := session.java_warning(java):
        return warning("java", text, f"install Java {session.JAVA_VERSION_MIN}")
    return ok("java", f"Java {java.version} at {java.path}, for pipelines")


def _memory() -> Finding:
    available = _available_bytes()
    if available is None:
        return ok("memory", "this system does not tell how much is available")
    text = f"{size_text(available)} available"
    if available < _MEMORY_BYTES_MIN:
        remedy = (
            "free some: a broker needs about 100 MiB, and what is left is the page cache that reads come from"
        )
        return warning("memory", text, remedy)
    return ok("memory", text)


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    machine = next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
    limit = _container_bytes()
    return min((each for each in (machine, limit) if each is not None), default=None)


def _container_bytes() -> int | None:
    """The memory that a container may still use, where its limit is known (cgroup 2)."""
    group = Path("/sys/fs/cgroup")
    try:
        limit = (group / "memory.max").read_text().strip()
        used = int((group / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return max(0, int(limit) - used) if limit.isdecimal() else None


def _open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{_limit_text(soft)} now, {_limit_text(hard)} at most (`tidemill serve` takes the most)"
    if file_limit() < FILES_MIN:
        return warning("open files", text, FILES_REMEDY)
    return ok("open files", text)


FILES_REMEDY = (
    "raise the hard limit: LimitNOFILE=100000 in the systemd unit, or nofile in /etc/security/limits.conf"
)


def file_limit() -> int:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return sys.maxsize if hard == resource.RLIM_INFINITY else hard


def _limit_text(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
