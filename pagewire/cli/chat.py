"""`pagewire chat`: one message, or a conversation with its history, over the public gRPC API."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.cli.generation import Message, stream_chat
from pagewire.cli.session import ClientConfig, Session, open_session
from pagewire.kit.config import OneLineParser, add_arguments, from_namespace
from pagewire.kit.errors import PagewireError
from pagewire.kit.plain_text import one_line


@dataclass(frozen=True, slots=True)
class ChatConfig(ClientConfig):
    """Talk to the model: with a message, one answer; without, a conversation until Ctrl-D."""

    system: str | None = None
    """Text of a system message that opens the conversation."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    parser = OneLineParser(prog="pagewire chat", description=ChatConfig.__doc__)
    parser.add_argument("message", nargs="?", help="what to say; left out: a conversation")
    add_arguments(parser, ChatConfig)
    namespace = parser.parse_args(list(arguments))
    config = from_namespace(ChatConfig, namespace)
    with open_session(config) as session:
        conversation = Conversation(session, config)
        if namespace.message is not None:
            conversation.say(namespace.message)
        else:
            _converse(conversation)
    return 0


class Conversation:
    """The messages so far. An answer that was cut off stays in, as far as it came."""

    def __init__(self, session: Session, config: ChatConfig) -> None:
        self.messages: list[Message] = []
        self._session = session
        self._config = config
        if config.system is not None:
            self.messages.append(Message("system", config.system))

    def say(self, text: str) -> None:
        """Send a message and print the answer.

        Raises:
            KeyboardInterrupt: Ctrl-C came meanwhile.
            PagewireError: The message was refused; it is not in the history then.
        """
        question = Message("user", text)
        config = self._config
        answer: list[str] = []
        texts = stream_chat(
            self._session.gateway, [*self.messages, question], config.answer, config.api_key
        )
        try:
            self._session.print_answer(texts, answer)
        finally:
            if answer:
                self.messages += [question, Message("assistant", "".join(answer))]


def _converse(conversation: Conversation) -> None:
    """Read messages until the end of input, or Ctrl-C at the prompt."""
    prompt = "> " if sys.stdin.isatty() else ""
    while True:
        try:
            text = input(prompt)
        except (EOFError, KeyboardInterrupt):
            if prompt:
                print()
            return
        if not text.strip():
            continue
        try:
            conversation.say(text)
        except KeyboardInterrupt:
            print("[stopped]", file=sys.stderr)
        except PagewireError as exc:
            print(f"error: {one_line(exc.message)}", file=sys.stderr)
