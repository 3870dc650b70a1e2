"""`pagewire complete`: continues a text over the public gRPC API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.cli.generation import stream_completion
from pagewire.cli.session import ClientConfig, open_session
from pagewire.kit.config import OneLineParser, add_arguments, from_namespace


@dataclass(frozen=True, slots=True)
class CompleteConfig(ClientConfig):
    """Continue a text, without a chat template."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = OneLineParser(prog="pagewire complete", description=CompleteConfig.__doc__)
    parser.add_argument("text", help="the text to continue")
    add_arguments(parser, CompleteConfig)
    namespace = parser.parse_args(list(arguments))
    config = from_namespace(CompleteConfig, namespace)
    with open_session(config) as session:
        texts = stream_completion(session.gateway, namespace.text, config.answer, config.api_key)
        session.print_answer(texts, [])
    return 0
