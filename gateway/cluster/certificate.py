"""The certificate of a cluster, which the first node makes and PostgreSQL keeps.

A separate process makes it, since the library takes 10 MiB that no node needs later: this module is its
program, too, and imports nothing of the gateway.
"""

import datetime
import json
import subprocess
import sys
from typing import NamedTuple

_FIRST = datetime.datetime(2020, 1, 1)
_LAST = datetime.datetime(9999, 12, 31)
_SECONDS = 60.0


class Certificate(NamedTuple):
    """The certificate of a cluster and its private key, as PEM.

    During a rotation nodes also accept ``other``: the next certificate, and then the former one. ``step``
    counts the steps of all rotations.
    """

    certificate: str
    key: str
    other: str = ""
    step: int = 0


def new_certificate(cluster_id: str) -> Certificate:
    """Return a new certificate, which does not expire. Waits for the process that makes it."""
    # -P: this folder has a module that is named as one of the standard library.
    command = [sys.executable, "-P", __file__, cluster_id]
    made = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_SECONDS)  # noqa: S603 - this file
    return Certificate(*json.loads(made.stdout))


def _make(cluster_id: str) -> Certificate:
    from cryptography import x509  # not in the process of a node
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    serial = x509.random_serial_number()
    # OpenSSL finds a certificate by its name: the two of a rotation need different ones.
    common = f"trunkline {cluster_id} {serial % 2**32:08x}"
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common)])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), serial, _FIRST, _LAST)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return Certificate(made.public_bytes(pem).decode(), private.decode())


if __name__ == "__main__":
    json.dump(_make(sys.argv[1]), sys.stdout)
