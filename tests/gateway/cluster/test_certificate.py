"""The certificate of a cluster is made outside of the process that needs it."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.gateway_process import ROOT

_NODE = """
import sys
from gateway.cluster.certificate import new_certificate
made, other = new_certificate("one"), new_certificate("two")
assert made.certificate != other.certificate and made.key != other.key
assert made.certificate.startswith("-----BEGIN CERTIFICATE-----") and "PRIVATE KEY" in made.key
assert "cryptography" not in sys.modules
"""


def test_a_node_that_makes_a_certificate_does_not_keep_the_library_for_it() -> None:
    made = subprocess.run(
        [sys.executable, "-c", _NODE], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")
