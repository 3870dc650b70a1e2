"""`pagewire complete`: continues a text over the public gRPC API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pagewire.cli.generation import SamplingFlags, stream_completion
from pagewire.cli.session import open_session
from pagewire.kit.channels import check_target
from pagewire.kit.config import OneLineParser, add_arguments, from_namespace


@dataclass(frozen=True, slots=True)
class CompleteConfig:
    """Continue a text, without a chat template."""

    target: str | None = None
    """Address of the gateway's gRPC API. Default: 127.0.0.1:50050, or, when nothing answers there,
    a stack of our own that ends with this command."""
    model: str = "smollm2"
    """Model of a stack of our own."""
    api_key: str | None = None
    """Key to send, if the gateway wants one."""
    answer: SamplingFlags = field(default_factory=SamplingFlags)

    def __post_init__(self) -> None:
        if self.target is not None:
            check_target(self.target)


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = OneLineParser(prog="pagewire complete", description=CompleteConfig.__doc__)
    parser.add_argument("text", help="the text to continue")
    add_arguments(parser, CompleteConfig)
    namespace = parser.parse_args(list(arguments))
    config = from_namespace(CompleteConfig, namespace)
    with open_session(config.target, config.model) as session:
        texts = stream_completion(session.channel, namespace.text, config.answer, config.api_key)
        session.print_answer(texts, [])
    return 0
