"""A socket with TLS between memory and kernel: ciphertext is received and sent in large pieces.

OpenSSL on a descriptor makes two system calls for each record of TLS, and a producer may write a record for each message.
Here one system call receives what has arrived, and the records are decrypted from memory. `TlsSocket` has the part of
`ssl.SSLSocket` that connections use, with the same exceptions, so that either serves. Where the kernel encrypts,
`KernelTlsSocket` is used instead.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from typing import Any, Literal

# Also about what an idle connection may keep for each direction: OpenSSL's buffers do not shrink.
_PIECE_BYTES = 64 * 1024


class KernelTlsSocket(ssl.SSLSocket):
    """A socket whose records the kernel may encrypt and decrypt. OpenSSL works on the descriptor."""

    # Each read gives one record, so only a failed read tells that nothing is left.
    has_more = True


class TlsSocket:
    """TLS over a non-blocking socket, which it owns."""

    __slots__ = ("_failure", "_incoming", "_object", "_outgoing", "_sock", "_taken", "_unsent", "has_more")

    def __init__(
        self,
        context: ssl.SSLContext,
        sock: socket.socket,
        *,
        server_side: bool = False,
        server_hostname: str | None = None,
    ) -> None:
        self._sock = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_side, server_hostname=server_hostname
        )
        # Ciphertext that the kernel has not taken yet, and how many bytes of the caller are in it.
        self._unsent = memoryview(b"")
        self._taken = 0
        # An error behind bytes that were decrypted before it.
        self._failure: OSError | None = None
        # Whether a further read is likely to give bytes at once.
        self.has_more = False

    def fileno(self) -> int:
        return self._sock.fileno()

    def getsockname(self) -> Any:
        return self._sock.getsockname()

    def getpeercert(self, binary_form: Literal[True]) -> bytes | None:
        return self._object.getpeercert(binary_form=binary_form)

    def pending(self) -> int:
        """The number of received bytes that no event of the descriptor announces. They may be a part of a record."""
        return self._object.pending() + self._incoming.pending

    # -- the handshake ---------------------------------------------------------------------------------------

    def do_handshake(self) -> None:
        """One step of the handshake, without input and output. SSLWantReadError: `exchange` first, then the next step."""
        self._object.do_handshake()

    def exchange(self, *, receives: bool) -> None:
        """Send what the handshake has written, and receive what it waits for.

        SSLWantWriteError and SSLWantReadError say what the socket has to be waited for.
        """
        self._put_out()
        if receives:
            self._take_in()

    # -- data ------------------------------------------------------------------------------------------------

    def recv_into(self, view: memoryview) -> int:
        """Returns the number of bytes decrypted, 0 at the end of the stream. Receives from the kernel at most once."""
        if self._failure is not None:
            raise self._failure
        try:
            count = self._decrypt(view)
        except ssl.SSLWantReadError:
            self._take_in()
            count = self._decrypt(view)
        if self._outgoing.pending:
            # OpenSSL answers a change of keys by itself. What does not fit goes out with the next write.
            with contextlib.suppress(ssl.SSLWantWriteError):
                self._put_out()
        return count

    def _decrypt(self, view: memoryview) -> int:
        """As many records as are here and fit. SSLWantReadError when there is no whole one."""
        read, room, count = self._object.read, len(view), 0
        try:
            while count < room:
                got = int(read(room - count, view[count:]))
                if not got:
                    break
                count += got
        except ssl.SSLWantReadError:
            if not count:
                raise
        except ssl.SSLEOFError:
            pass
        except OSError as error:
            if not count:
                raise
            self._failure = error
        return count

    def _take_in(self) -> None:
        try:
            received = self._sock.recv(_PIECE_BYTES)
        except (BlockingIOError, InterruptedError):
            self.has_more = False
            raise ssl.SSLWantReadError from None
        self.has_more = len(received) == _PIECE_BYTES
        if received:
            self._incoming.write(received)
        else:
            self._incoming.write_eof()

    def send(self, data: bytes | bytearray | memoryview, _flags: int = 0) -> int:
        """Encrypts and sends bytes; returns how many.

        SSLWantWriteError when the kernel takes no more: call it again with the same bytes.
        """
        if not self._taken:
            self._put_out()
            self._taken = self._object.write(memoryview(data)[:_PIECE_BYTES])
        self._put_out()
        taken, self._taken = self._taken, 0
        return taken

    def _put_out(self) -> None:
        while True:
            if not self._unsent:
                if not self._outgoing.pending:
                    return
                self._unsent = memoryview(self._outgoing.read())
            try:
                sent = self._sock.send(self._unsent)
            except (BlockingIOError, InterruptedError):
                raise ssl.SSLWantWriteError from None
            self._unsent = self._unsent[sent:]

    # -- closing ---------------------------------------------------------------------------------------------

    def unwrap(self) -> None:
        """Send close_notify, without waiting for the peer's."""
        with contextlib.suppress(ssl.SSLWantReadError):
            self._object.unwrap()
        self._put_out()

    def close(self) -> None:
        self._sock.close()


# What frames are received from and sent to.
ByteSocket = socket.socket | TlsSocket
SecuredSocket = TlsSocket | KernelTlsSocket
