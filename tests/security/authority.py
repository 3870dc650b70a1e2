"""A throw-away certificate authority, and the certificates that tests show."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pagewire.kit.tls import PeerTls, TlsConfig

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """The three files of a process."""

    cert: Path
    key: Path
    ca: Path

    def flags(self) -> list[str]:
        return [f"--tls-cert={self.cert}", f"--tls-key={self.key}", f"--tls-ca={self.ca}"]

    def config(self) -> TlsConfig:
        return TlsConfig(self.cert, self.key, self.ca)

    def peer(self, role: str) -> PeerTls:
        """What a channel of this process to a service of the role needs."""
        peer = self.config().peer(role)
        assert peer is not None
        return peer


class Authority:
    """Signs certificates and writes them to a folder."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        builder = self._builder(self._name, self._key, 1).add_extension(
            x509.BasicConstraints(ca=True, path_length=None), critical=True
        )
        self.file = folder / f"{name}.pem"
        certificate = builder.sign(self._key, hashes.SHA256())
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, *sans: str, file: str | None = None, days: int = 1) -> Identity:
        """Write a certificate that has these names.

        Args:
            sans: DNS names, or URIs.
            file: Name of the files; default: the first name.
            days: Until it expires; less than 0: it has.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        names = [
            x509.UniformResourceIdentifier(san) if "://" in san else x509.DNSName(san)
            for san in sans
        ]
        certificate = (
            self._builder(x509.Name([]), key, days)
            .add_extension(x509.SubjectAlternativeName(names), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        name = file or sans[0]
        identity = Identity(self._folder / f"{name}.crt", self._folder / f"{name}.key", self.file)
        identity.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        identity.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return identity

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * _DAY)
            .not_valid_after(now + days * _DAY)
        )
