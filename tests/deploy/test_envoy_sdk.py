"""The SDK's own checks against a real model, through Envoys with mTLS between them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.deploy.mesh import Layout, Mesh, running_mesh
from tests.e2e.sdk_checks import check_form, check_stream_and_whole


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with running_mesh(Layout(engine=("--model=smollm2", "--dtype=float32"))) as mesh:
        yield mesh


def test_a_stream_gives_what_the_whole_answer_has(mesh: Mesh) -> None:
    check_stream_and_whole(mesh.grpc_target)


def test_an_answer_has_the_form_that_is_asked_for(mesh: Mesh) -> None:
    check_form(mesh.grpc_target)
