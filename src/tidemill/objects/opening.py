"""Opens the object store at a location: a folder or a bucket."""

from __future__ import annotations

from urllib.parse import unquote

from tidemill.errors import ConfigError
from tidemill.objects.folder import FolderStore
from tidemill.objects.remote import RemoteStore
from tidemill.objects.store import ObjectStore

_REMOTE_SCHEMES = ("s3", "gs", "az", "abfs", "abfss")


def open_store(location: str, **options: object) -> ObjectStore:
    """The store at a path, at `file:///path`, or at the URL of a bucket: `s3://bucket/prefix`, `gs://…`, `az://…`.

    Options are those of obstore for that kind of store. Nothing is connected yet.
    """
    scheme, separator, rest = location.partition("://")
    if not separator or scheme == "file":
        if options:
            raise ConfigError(f"object store {location}: a folder has no options, got {', '.join(options)}")
        return FolderStore(unquote(rest) if separator else location)
    if scheme in _REMOTE_SCHEMES:
        return RemoteStore(location, options)
    raise ConfigError(
        f"object store {location}: a path, or a URL that begins with {', '.join(_REMOTE_SCHEMES)} or file"
    )
