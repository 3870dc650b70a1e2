"""Writes the sidecars' configurations of the component `sidecar`, one folder a service.

Run it after a change in deploy/envoy or in the number of replicas: where the caller chooses among
replicas, each of them has a port of its own.
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "envoy"))

from render import ROLES, Sidecar  # noqa: E402

NUM_REPLICAS = 2
DOMAIN = "pagewire.svc.cluster.local"
PEERS = {
    "gateway": [f"gateway.{DOMAIN}"],
    "tokenizer": [f"tokenizer.{DOMAIN}"],
    **{
        service: [f"{service}-{number}.{service}.{DOMAIN}" for number in range(NUM_REPLICAS)]
        for service in ("scheduler", "worker")
    },
}
OUT = HERE / "components" / "sidecar"


def texts() -> dict[Path, str]:
    """Return what each file is to contain; the paths are below `OUT`."""
    return {
        Path(role, name): text
        for role in ROLES
        for name, text in Sidecar(role, PEERS).files().items()
    }


if __name__ == "__main__":
    for path, text in texts().items():
        (OUT / path).parent.mkdir(parents=True, exist_ok=True)
        (OUT / path).write_text(text)
