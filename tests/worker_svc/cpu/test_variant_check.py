"""The check of a variant finds what is wrong for many tokens or for one alone."""

from __future__ import annotations

from ctypes import POINTER, c_float, cast
from dataclasses import replace
from typing import Any

import numpy as np

from worker_svc.cpu.kernels import Kernels
from worker_svc.cpu.structs import Step
from worker_svc.cpu.variant_check import problem_of

MANY = 12


class WrongForSome:
    """The library, but with nothing done where a kernel has so many tokens."""

    def __init__(
        self,
        native: Any,
        *,
        linear: range = range(0),
        attend: range = range(0),
        largest: range = range(0),
    ) -> None:
        self._native = native
        self._linear, self._attend, self._largest = linear, attend, largest

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def pw_linear(self, *arguments: Any) -> None:
        if arguments[3] not in self._linear:
            self._native.pw_linear(*arguments)

    def pw_take_largest(self, *arguments: Any) -> None:
        if arguments[2] not in self._largest:
            self._native.pw_take_largest(*arguments)

    def pw_attend(self, *arguments: Any) -> None:
        if cast(arguments[4], POINTER(Step)).contents.num_tokens not in self._attend:
            self._native.pw_attend(*arguments)


def test_products_of_many_tokens_are_looked_at(kernels: Kernels) -> None:
    native = WrongForSome(kernels.native, linear=range(MANY, 129))
    problem = problem_of(replace(kernels, native=native))
    assert problem is not None
    assert problem.startswith("products")


def test_the_search_of_the_largest_value_is_looked_at(kernels: Kernels) -> None:
    native = WrongForSome(kernels.native, largest=range(32, 1000))
    problem = problem_of(replace(kernels, native=native))
    assert problem is not None
    assert problem.startswith("the largest")


def test_the_search_of_a_nan_is_looked_at(kernels: Kernels) -> None:
    class HidesNan(WrongForSome):
        """As if vectors were not compared: a NaN is seen in the rest behind them alone."""

        def pw_take_largest(self, *arguments: Any) -> None:
            handle, address, count, *others = arguments
            values = np.ctypeslib.as_array(cast(address, POINTER(c_float)), (count,)).copy()
            in_vectors = count - count % (2 * kernels.lanes)
            values[:in_vectors] = np.nan_to_num(values[:in_vectors], nan=-9.0)
            self._native.pw_take_largest(handle, values.ctypes.data, count, *others)

    problem = problem_of(replace(kernels, native=HidesNan(kernels.native)))
    assert problem is not None
    assert problem.startswith("the largest")


def test_attention_of_few_queries_is_looked_at(kernels: Kernels) -> None:
    native = WrongForSome(kernels.native, attend=range(1, 2))
    assert problem_of(replace(kernels, native=native)) == "attention"


def test_attention_of_many_queries_is_looked_at(kernels: Kernels) -> None:
    native = WrongForSome(kernels.native, attend=range(5, 1000))
    assert problem_of(replace(kernels, native=native)) == "attention"
