"""Asks OSV (osv.dev) for known weaknesses of the pinned versions in constraints/*.txt.

Exit code 1: there are some, and they are listed. Where OSV cannot be reached, it says so and exits
with 0: nothing is known then, and no work is held up. Proxies of the environment are used.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.request
from collections.abc import Iterable
from http.client import HTTPException
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OSV = "https://api.osv.dev"
TIMEOUT_S = 10.0
MAX_ANSWER_BYTES = 16 * 1024 * 1024
# Of one request to the source.
MAX_PACKAGES = 500

_PIN = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([^\s;#+]+)")


def pins(files: Iterable[Path]) -> list[tuple[str, str]]:
    """Return (name, version) of every pinned package, in order."""
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    found = (match.groups() for line in lines if (match := _PIN.match(line)) is not None)
    return sorted({(name.lower().replace("_", "-"), version) for name, version in found})


def ask(source: str, packages: list[tuple[str, str]]) -> list[list[str]]:
    """Return the ids of the weaknesses of each package.

    Raises:
        OSError: The source cannot be reached.
        HTTPException: It speaks no HTTP, or stops in the middle.
        ValueError: It answers something else.
    """
    found: list[list[str]] = []
    for start in range(0, len(packages), MAX_PACKAGES):
        queries = [
            {"package": {"name": name, "ecosystem": "PyPI"}, "version": version}
            for name, version in packages[start : start + MAX_PACKAGES]
        ]
        results = _post(f"{source}/v1/querybatch", {"queries": queries}).get("results")
        if not isinstance(results, list) or len(results) != len(queries):
            raise ValueError("its answer has no result for each package")
        found += [[each["id"] for each in result.get("vulns", ())] for result in results]
    return found


def _post(url: str, body: Any) -> dict[str, Any]:
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        content = json.loads(answer.read(MAX_ANSWER_BYTES))
    if not isinstance(content, dict):
        raise ValueError("its answer is no JSON object")
    return content


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", default=OSV, help="URL of an OSV server")
    parser.add_argument("files", nargs="*", type=Path, help="default: constraints/*.txt")
    options = parser.parse_args(arguments)
    packages = pins(options.files or sorted((ROOT / "constraints").glob("*.txt")))
    try:
        weaknesses = ask(options.source, packages)
    except (OSError, HTTPException, ValueError, KeyError, AttributeError, TypeError) as error:
        reason = getattr(error, "reason", error)
        print(f"audit: NOT DONE: {options.source} gives no answer of use: {reason}")
        return 0
    for (name, version), ids in zip(packages, weaknesses, strict=True):
        if ids:
            print(f"{name} {version}: {', '.join(ids)}")
    count = sum(map(len, weaknesses))
    print(f"audit: {len(packages)} packages, {count} known weaknesses")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
