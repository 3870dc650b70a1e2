"""A Dockerfile as stages of instructions: enough to check what ours promises, without an engine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One instruction, on one line."""

    keyword: str
    text: str

    def exec_form(self) -> list[str] | None:
        """The words of an instruction in exec form; None for a line that a shell would read."""
        text = self.text[self.text.index("[") :] if "[" in self.text else ""
        try:
            return list(json.loads(text))
        except ValueError:
            return None


@dataclass
class Stage:
    """What is between one FROM and the next."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def all(self, keyword: str) -> list[Instruction]:
        return [each for each in self.instructions if each.keyword == keyword]


def read_dockerfile(path: Path) -> tuple[list[Instruction], dict[str, Stage]]:
    """Return the instructions above the first stage, and the stages by name, in order."""
    header: list[Instruction] = []
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for instruction in _instructions(path.read_text()):
        if instruction.keyword == "FROM":
            base, _, name = instruction.text.partition(" AS ")
            current = stages[name] = Stage(name, base)
        elif current is None:
            header.append(instruction)
        else:
            current.instructions.append(instruction)
    return header, stages


def with_bases(stage: Stage, stages: dict[str, Stage]) -> list[Instruction]:
    """Return the instructions of a stage after those of the stages that it begins from."""
    base = stages.get(stage.base)
    return [*(with_bases(base, stages) if base else []), *stage.instructions]


def _instructions(text: str) -> list[Instruction]:
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    parts = (line.split(maxsplit=1) for line in joined.splitlines())
    return [Instruction(keyword, text) for keyword, text in parts]
