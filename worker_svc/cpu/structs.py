"""The structs of native/*.h as ctypes has them. A change there is a change here."""

from __future__ import annotations

import ctypes

Address = ctypes.c_void_p


class Matrix(ctypes.Structure):
    """Packed rows; see `packing`."""

    _fields_ = (
        ("data", Address),
        ("kind", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("columns", ctypes.c_int32),
    )


class Largest(ctypes.Structure):
    """The largest value of a row so far, and its lowest place; a NaN once there was one."""

    _fields_ = (("value", ctypes.c_float), ("place", ctypes.c_int32))


class Linear(ctypes.Structure):
    """Matrices whose rows follow each other."""

    _fields_ = (
        ("parts", ctypes.POINTER(Matrix)),
        ("num_parts", ctypes.c_int32),
        ("bias", Address),
    )


class Layer(ctypes.Structure):
    """Weights of one layer."""

    _fields_ = (
        ("input_norm", Address),
        ("query_norm", Address),
        ("key_norm", Address),
        ("output_norm", Address),
        ("qkv", Linear),
        ("output", Linear),
        ("gate_up", Linear),
        ("down", Linear),
        ("window", ctypes.c_int32),
    )


class Model(ctypes.Structure):
    """All that a plan is made of."""

    _fields_ = (
        ("num_layers", ctypes.c_int32),
        ("hidden_size", ctypes.c_int32),
        ("intermediate_size", ctypes.c_int32),
        ("num_heads", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("layers", ctypes.POINTER(Layer)),
        ("final_norm", Address),
        ("embedding", Matrix),
        ("head", Matrix),
        ("cosines", Address),
        ("sines", Address),
        ("alone_products", ctypes.c_int64),
    )


class Cache(ctypes.Structure):
    """KV of all layers, float16."""

    _fields_ = (
        ("data", Address),
        ("num_blocks", ctypes.c_int64),
        ("block_size", ctypes.c_int32),
        ("num_kv_heads", ctypes.c_int32),
        ("head_dim", ctypes.c_int32),
    )


class Step(ctypes.Structure):
    """Arrays of a step, all int64 and contiguous."""

    _fields_ = (
        ("num_tokens", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
        ("token_ids", Address),
        ("positions", Address),
        ("slots", Address),
        ("block_tables", Address),
        ("query_starts", Address),
        ("table_width", ctypes.c_int64),
    )
