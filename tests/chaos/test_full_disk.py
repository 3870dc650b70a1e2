"""A disk without room: what would be cached is not, and everything works."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.stack import Layout, chaos_stack
from tests.chaos.traffic import ask_all, mixed_requests, open_stubs


@pytest.mark.timeout(300)
async def test_no_service_needs_room_on_the_disk(tmp_path: Path) -> None:
    requests = mixed_requests(19, 8, 30)
    alone = {"num_replicas": 1, "num_tokenizers": 1}
    async with (
        chaos_stack(Layout(**alone)) as stack,
        open_stubs([stack.target("gateway-0")]) as (stub,),
    ):
        expected = await ask_all(stub, requests)
    full = Layout(**alone, tokenizer=(f"--cache-dir={tmp_path}",), has_full_disk=True)
    async with (
        chaos_stack(full) as stack,
        open_stubs([stack.target("gateway-0")]) as (stub,),
    ):
        assert await ask_all(stub, requests) == expected
        assert "converted tokenizer is not cached" in stack.log_text()
