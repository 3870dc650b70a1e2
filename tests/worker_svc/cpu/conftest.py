"""The compiled kernels, in each variant that this processor has."""

from __future__ import annotations

import platform

import pytest

from worker_svc.cpu.kernels import Kernels, load_library, variants

_LIBRARY = load_library()
_VARIANTS = [] if _LIBRARY is None else variants(_LIBRARY)
_NOT_BUILT = "not built"


@pytest.fixture(params=[*(kernels.name for kernels in _VARIANTS)] or [_NOT_BUILT])
def kernels(request: pytest.FixtureRequest) -> Kernels:
    if request.param == _NOT_BUILT:
        if platform.machine() == "x86_64":
            pytest.fail("the CPU kernels are not built: run make setup, with a C++ compiler")
        pytest.skip("there are no kernels for this processor")
    return next(kernels for kernels in _VARIANTS if kernels.name == request.param)
