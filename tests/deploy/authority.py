"""A certificate authority that lasts as long as a test, and a certificate for each role."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_LIFE = datetime.timedelta(days=1)


class Authority:
    """Issues certificates whose only name is a role."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("test authority")
        constraint = x509.BasicConstraints(ca=True, path_length=0)
        self._certificate = (
            _builder(self._name, self._name, self._key)
            .add_extension(constraint, critical=True)
            .sign(self._key, hashes.SHA256())
        )

    def issue(self, role: str, folder: Path) -> Path:
        """Write tls.crt, tls.key and ca.crt of a role into a folder, and return it."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder(_name(role), self._name, key)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(role)]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        folder.mkdir(parents=True, exist_ok=True)
        pem = serialization.Encoding.PEM
        (folder / "tls.crt").write_bytes(certificate.public_bytes(pem))
        (folder / "ca.crt").write_bytes(self._certificate.public_bytes(pem))
        (folder / "tls.key").write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        return folder


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LIFE)
        .not_valid_after(now + _LIFE)
    )
