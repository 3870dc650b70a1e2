"""A disk without room: what would be cached is not, and everything works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.answers import ask_all, open_stubs
from tests.chaos.requests import mixed_requests
from tests.chaos.stack import Layout, chaos_stack


@pytest.mark.timeout(300)
async def test_no_service_needs_room_on_the_disk(tmp_path: Path) -> None:
    layout = Layout(
        num_replicas=1,
        num_tokenizers=1,
        tokenizer=(f"--cache-dir={tmp_path}",),
        has_full_disk=True,
    )
    async with (
        chaos_stack(layout) as stack,
        open_stubs([stack.target("gateway-0")]) as (stub,),
    ):
        answers = await ask_all(stub, mixed_requests(19, 8, 30))
        assert "converted tokenizer is not cached" in stack.log_text()
    assert all(output.text for answer in answers for output in answer.outputs.values())
