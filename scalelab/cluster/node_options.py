"""How nodes join the driver: the credentials of a run, and a private file for each."""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from distributed.security import Security
from pydantic import TypeAdapter

from scalelab.inputs.plain_files import read_file
from scalelab.records.attempt import write_atomically

_NAME = "scalelab-run"
# Before and after now. What ends a run's credentials is that nobody keeps them; a
# certificate that began just now would shut out nodes whose clock is behind.
_VALID = timedelta(days=3650)


def run_security() -> Security:
    """Make credentials for all that take part in a run; they exist in memory only."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, _NAME)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(_NAME)]), critical=False
        )
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _VALID)
        .not_valid_after(now + _VALID)
        .sign(key, hashes.SHA256())
        .public_bytes(serialization.Encoding.PEM)
        .decode()
    )

    secret = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
    roles = ("client", "scheduler", "worker")

    return Security(
        require_encryption=True,
        tls_ca_file=certificate,
        **{f"tls_{role}_key": secret for role in roles},
        **{f"tls_{role}_cert": certificate for role in roles},
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeOptions:
    """The scheduler's address, the credentials, and the devices of a node."""

    scheduler: str
    tls_files: dict[str, str]  # paths, as Dask's Security names them
    device_type: str
    num_devices: int
    group: str | None = None
    interface: str | None = None  # None: the one that leads to the driver
    preload: tuple[str, ...] = ()
    entry: str | None = None

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that :meth:`write` has written."""
        return TypeAdapter(cls).validate_json(read_file(path, below=path.parent.parent))

    def write(self, path: Path) -> None:
        """Write the file."""
        write_private(path, json.dumps(asdict(self), indent=1))


def write_private(path: Path, text: str) -> None:
    """Write a file of a run's cluster folder that only its user may read."""
    content, run = text.encode(), path.parent.parent
    write_atomically(path, content, below=run, durable=False, permissions=0o600)


def write_tls_files(security: Security, directory: Path) -> dict[str, str]:
    """Write the credentials that workers need; return paths by their setting."""
    files = {"tls_ca_file": "ca", "tls_worker_cert": "cert", "tls_worker_key": "key"}
    paths = {setting: directory / f"{name}.pem" for setting, name in files.items()}
    for setting, path in paths.items():
        write_private(path, getattr(security, setting))
    return {setting: str(path) for setting, path in paths.items()}
