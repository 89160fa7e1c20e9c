"""OpenSSL's contexts, made of `TlsSettings`, and made anew when a file of theirs has changed.

`TlsContexts` belongs to one listener or one purpose. A context is swapped as a whole: connections that are open keep the one
they began with. A file that cannot be used when it has changed leaves the old context in force, and says why once.
"""

from __future__ import annotations

import os
import re
import ssl

from tidemill.errors import ConfigError
from tidemill.tls.settings import KeyStore, TlsSettings, TrustStore
from tidemill.tls.stores import FileStamp, as_file, file_stamp, pem_lines, read_store

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
# SSL_OP_ENABLE_KTLS; Python names it since 3.12.
_OP_ENABLE_KTLS = 8
_TLS13_SUITES = frozenset(
    {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}
)


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """For a listener. Raises ConfigError when a store cannot be used."""
    if settings.key_store is None:
        raise ConfigError(
            "a listener with TLS needs a certificate: set ssl.keystore.location, or ssl.keystore.certificate.chain and "
            "ssl.keystore.key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    # A client could make the broker negotiate for ever, at the price of one packet each time.
    context.options |= ssl.OP_NO_RENEGOTIATION
    if kernel_has_tls():
        context.options |= _OP_ENABLE_KTLS
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if settings.client_auth != "none":
        if settings.trust_store is None:
            raise ConfigError(
                f"ssl.client.auth={settings.client_auth} needs to know which clients to trust: set "
                "ssl.truststore.location or ssl.truststore.certificates"
            )
        _load_trust(context, settings.trust_store)
    _limit(context, settings)
    _load_key(context, settings.key_store)
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """For a connection that this side opens. Raises ConfigError when a store cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_hostname
    _limit(context, settings)
    if settings.trust_store is None:
        context.load_default_certs()
    else:
        _load_trust(context, settings.trust_store)
    if settings.key_store is not None:
        _load_key(context, settings.key_store)
    return context


def enables_kernel_tls(context: ssl.SSLContext) -> bool:
    return bool(context.options & _OP_ENABLE_KTLS)


def kernel_has_tls() -> bool:
    """Whether the kernel can encrypt what `sendfile` sends."""
    try:
        with open("/proc/sys/net/ipv4/tcp_available_ulp", encoding="ascii") as file:
            return "tls" in file.read().split()
    except OSError:
        return False


def _limit(context: ssl.SSLContext, settings: TlsSettings) -> None:
    versions = [_VERSIONS[name] for name in settings.versions]
    older: list[str] = []
    newest: list[str] = []
    for suite in settings.cipher_suites:
        (newest if suite in _TLS13_SUITES else older).append(suite)
    if settings.cipher_suites:
        if newest and not _TLS13_SUITES.issubset(newest):
            raise ConfigError(
                "ssl.cipher.suites names some suites of TLS 1.3; OpenSSL has all of them or none: name "
                f"{', '.join(sorted(_TLS13_SUITES))}, or none of them for TLS 1.2 alone"
            )
        # As with Java, a version without a suite is not spoken.
        wanted = {ssl.TLSVersion.TLSv1_2: older, ssl.TLSVersion.TLSv1_3: newest}
        versions = [version for version in versions if wanted[version]]
    if not versions:
        raise ConfigError("ssl.cipher.suites has no suite for a version in ssl.enabled.protocols")
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if older:
        try:
            context.set_ciphers(":".join(_openssl_name(suite) for suite in older))
        except ssl.SSLError:
            raise ConfigError(f"ssl.cipher.suites: OpenSSL has none of {', '.join(older)}") from None


def _openssl_name(suite: str) -> str:
    """TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 is ECDHE-RSA-AES256-GCM-SHA384 to OpenSSL."""
    if "_WITH_" not in suite:
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = re.sub(r"AES_(\d+)", r"AES\1", cipher).replace("_CBC", "")
    cipher = cipher.replace("CHACHA20_POLY1305_SHA256", "CHACHA20_POLY1305")
    name = cipher if exchange == "RSA" else f"{exchange}_{cipher}"
    return name.replace("_", "-")


def _load_trust(context: ssl.SSLContext, store: TrustStore) -> None:
    what = "ssl.truststore.certificates"
    try:
        if store.location is None:
            assert store.certificates is not None
            context.load_verify_locations(cadata=pem_lines(store.certificates.value))
        elif os.path.isdir(store.location):
            context.load_verify_locations(capath=store.location)
        else:
            what = f"ssl.truststore.location={store.location}"
            pem = read_store(store.location, store.type, store.password, "ssl.truststore.location")
            context.load_verify_locations(cadata=pem)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{what} cannot be used as the certificates to trust: {tls_reason(error)}"
        ) from None


def _load_key(context: ssl.SSLContext, store: KeyStore) -> None:
    if store.location is not None:
        chain = read_store(store.location, store.type, store.password, "ssl.keystore.location")
    else:
        assert store.certificate_chain is not None
        chain = pem_lines(store.certificate_chain.value)
    key: str | None = None
    if store.key_location is not None:
        key = read_store(store.key_location, "PEM", None, "ssl.key.location")
    elif store.key is not None:
        key = pem_lines(store.key.value)
    # Without a password OpenSSL would ask for one on the terminal.
    password = store.key_password.value if store.key_password is not None else ""
    try:
        # One file may hold both, in any order.
        with as_file(chain if key is None else f"{chain}\n{key}") as path:
            context.load_cert_chain(path, password=password)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"the certificate or key cannot be used: {tls_reason(error)} "
            "(are they PEM, do they belong together, is ssl.key.password right?)"
        ) from None


def tls_reason(error: OSError | ValueError) -> str:
    """Returns the reason for which OpenSSL refused something, in small letters."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message.rstrip(".")
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is not PEM").replace("_", " ").lower()
    if isinstance(error, OSError):
        return (error.strerror or "it cannot be read").lower()
    return "it is not PEM"


class TlsContexts:
    """The contexts of one listener: `server` for accepted connections, `client` for dialling it on another node."""

    def __init__(self, settings: TlsSettings, *, serves: bool, dials: bool) -> None:
        """Raises ConfigError when a store cannot be used."""
        self._settings = settings
        self._serves, self._dials = serves, dials
        self._seen = self._stamps()
        self.server, self.client = self._load()

    def _load(self) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
        server = server_context(self._settings) if self._serves else None
        return server, client_context(self._settings) if self._dials else None

    def _stamps(self) -> tuple[FileStamp | None, ...]:
        return tuple(file_stamp(path) for path in self._settings.files)

    def reload_if_changed(self) -> bool:
        """Read the files again when one of them is another than before; whether it was so.

        Raises ConfigError when what is there now cannot be used. It blocks: call it from a thread.
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return False
        self._seen = stamps
        self.server, self.client = self._load()
        return True
