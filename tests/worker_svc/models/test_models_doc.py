"""docs/models.md says what the registry says."""

from __future__ import annotations

from pathlib import Path

from worker_svc.models.registry import MODELS, REFUSED

DOC = Path(__file__).parents[3] / "docs" / "models.md"


def table_rows(num_columns: int) -> list[tuple[str, ...]]:
    """Cells of the rows that begin with an architecture."""
    lines = [line for line in DOC.read_text().splitlines() if line.startswith("| `")]
    rows = [tuple(cell.strip().strip("`") for cell in line.split("|")[1:-1]) for line in lines]
    return [row for row in rows if len(row) == num_columns]


def test_the_table_of_families_is_the_registrys() -> None:
    served = [
        (architecture, row.family, "yes" if row.own else "no", "yes")
        for architecture, row in MODELS.items()
    ]
    assert table_rows(4) == served


def test_the_table_of_refusals_is_the_registrys() -> None:
    assert table_rows(2) == list(REFUSED.items())
