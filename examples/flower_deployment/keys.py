"""Create a certificate authority, a server certificate and SuperNode keys: `python keys.py FOLDER NAME...`.

This does what the deployment guide does with openssl and ssh-keygen. It needs only the package cryptography, which
comes with Flower. Files that exist already are kept, so a second call adds the keys of new SuperNodes.
"""

from __future__ import annotations

import argparse
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

LOOPBACK = ("localhost", "127.0.0.1")


def create_certificates(folder: Path, hosts: tuple[str, ...] = LOOPBACK) -> None:
    """Write `ca.crt`, `ca.key`, `server.crt` and `server.key`, unless `server.crt` exists.

    Args:
        folder: The folder to write to. It must exist.
        hosts: The names and IP addresses under which clients reach the SuperLink.
    """
    if (folder / "server.crt").exists():
        return
    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = _name("our federation")
    ca = (
        _certificate(issuer, issuer, ca_key, days=3650)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    server = (
        _certificate(_name(hosts[0]), issuer, server_key, days=825)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    _write_private(folder / "ca.key", ca_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    _write_private(folder / "server.key", server_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "ca.crt").write_bytes(ca.public_bytes(Encoding.PEM))
    (folder / "server.crt").write_bytes(server.public_bytes(Encoding.PEM))


def create_node_key(folder: Path, name: str) -> None:
    """Write `NAME.key` and `NAME.key.pub` in OpenSSH's format, unless the public key exists."""
    public = folder / f"{name}.key.pub"
    if public.exists():
        return
    key = ec.generate_private_key(ec.SECP384R1())
    _write_private(folder / f"{name}.key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    words = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    public.write_bytes(words + f" {name}\n".encode())


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: int
) -> x509.CertificateBuilder:
    # An hour back, so that a client whose clock is a little behind accepts the certificate.
    start = datetime.now(UTC) - timedelta(hours=1)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(start).not_valid_after(start + timedelta(days=days))


def _write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read, from the first moment on."""
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_bytes(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder to write certificates and keys to")
    parser.add_argument("names", nargs="+", metavar="name", help="names of the SuperNodes that get a key")
    parser.add_argument("--host", action="append", default=[], help="a further name or address of the SuperLink")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    create_certificates(options.folder, (*options.host, *LOOPBACK))
    for name in options.names:
        create_node_key(options.folder, name)


if __name__ == "__main__":
    main()
