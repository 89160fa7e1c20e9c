"""Public keys that verify the signatures of JSON Web Tokens (RFC 7518), by `cryptography`.

The only module that imports it; `oauthbearer.py` imports this one when it has keys to parse.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

_HASHES: dict[str, hashes.HashAlgorithm] = {
    "256": hashes.SHA256(),
    "384": hashes.SHA384(),
    "512": hashes.SHA512(),
}
_CURVES: dict[str, ec.EllipticCurve] = {"P-256": ec.SECP256R1(), "P-384": ec.SECP384R1()}


class RsaKey:
    def __init__(self, key: rsa.RSAPublicKey) -> None:
        self._key = key

    def verify(self, algorithm: str, signature: bytes, message: bytes) -> bool:
        hashed = _HASHES[algorithm[2:]]
        filling: padding.AsymmetricPadding = (
            padding.PKCS1v15()
            if algorithm.startswith("RS")
            else padding.PSS(padding.MGF1(hashed), hashed.digest_size)
        )
        try:
            self._key.verify(signature, message, filling, hashed)
        except InvalidSignature:
            return False
        return True


class EllipticKey:
    def __init__(self, key: ec.EllipticCurvePublicKey) -> None:
        self._key = key

    def verify(self, algorithm: str, signature: bytes, message: bytes) -> bool:
        """The signature is two numbers of fixed size, one after the other."""
        size = (self._key.key_size + 7) // 8
        if len(signature) != 2 * size:
            return False
        both = encode_dss_signature(int.from_bytes(signature[:size]), int.from_bytes(signature[size:]))
        try:
            self._key.verify(both, message, ec.ECDSA(_HASHES[algorithm[2:]]))
        except InvalidSignature:
            return False
        return True


def rsa_key(modulus: int, exponent: int, bits_min: int) -> RsaKey:
    """`ValueError` when the numbers are no key, or a weak one."""
    key = rsa.RSAPublicNumbers(exponent, modulus).public_key()
    if key.key_size < bits_min:
        raise ValueError(f"an RSA key of {key.key_size} bits is too short")
    return RsaKey(key)


def elliptic_key(curve: str, x: int, y: int) -> EllipticKey:
    """`ValueError` when the point is not on the curve."""
    return EllipticKey(ec.EllipticCurvePublicNumbers(x, y, _CURVES[curve]).public_key())
