"""Rows as tables store them, decoded. Written from docs/NUMERICS.md, section 3, and docs/OPERATIONS.md with NumPy alone."""

import numpy as np

import packing

# Precision and quantizer of every form that a table can have.
FORMS = [
    ("f32", ""),
    ("f16", ""),
    ("bf16", ""),
    ("int8", "symmetric"),
    ("int8", "affine"),
    ("int4", "symmetric"),
    ("int4", "affine"),
    ("int2", "affine"),
]


def unpack(codes, bits, dim):
    """Elements that share bytes, the first in the lowest bits."""
    places = np.arange(0, 8, bits)
    return (codes[:, :, None] >> places & (1 << bits) - 1).reshape(len(codes), -1)[:, :dim]


def decode(precision, quantizer, dim, scales, zeros, codes):
    """Codes with scales as f32. Scales are the bits of bf16."""
    bits = int(precision.removeprefix("int"))
    if precision == "int8":
        numbers = codes.astype("i4")
    else:
        numbers = unpack(codes, bits, dim).astype("i4")
    if quantizer == "affine":
        numbers = numbers + zeros.astype("i4")[:, None]
    elif precision == "int4":
        numbers = numbers - 8
    return numbers.astype("<f4") * packing.from_bf16(scales)[:, None]


def from_npy(array, form, dim):
    """What np.load gave, as f32."""
    precision, quantizer = form
    if precision in ("f32", "f16"):
        assert array.dtype == {"f32": "<f4", "f16": "<f2"}[precision]
        return array.astype("<f4")
    if precision == "bf16":
        assert array.dtype == np.dtype([("bf16", "<u2", (dim,))])
        return packing.from_bf16(array["bf16"])
    width = int(precision.removeprefix("int"))
    codes = {8: "codes", 4: "codes4", 2: "codes2"}[width]
    signed = form == ("int8", "symmetric")
    fields = [("scale", "<u2")] + [("zero", "<i2")] * (quantizer == "affine")
    fields += [(codes, "i1" if signed else "u1", (-(-dim * width // 8),))]
    assert array.dtype == np.dtype(fields)
    return decode(*form, dim, array["scale"], array["zero"] if quantizer == "affine" else None, array[codes])


def from_tensors(tensors, form, dim):
    """What safetensors gave, as f32."""
    import ml_dtypes

    precision, quantizer = form
    if precision in ("f32", "f16", "bf16"):
        assert tensors["weights"].dtype == {"f32": "<f4", "f16": "<f2", "bf16": ml_dtypes.bfloat16}[precision]
        return tensors["weights"].astype("<f4")
    assert tensors["codes"].dtype == ("i1" if form == ("int8", "symmetric") else "u1")
    assert tensors["scales"].dtype == ml_dtypes.bfloat16
    assert ("zeros" in tensors) == (quantizer == "affine")
    return decode(*form, dim, tensors["scales"].view("<u2"), tensors.get("zeros"), tensors["codes"])


def nearest(form, rows):
    """The largest error that rounding to nearest makes in each row, for rows whose form has steps."""
    precision, quantizer = form
    if quantizer == "symmetric":
        steps = {"int8": 127, "int4": 7}[precision]
        span = np.abs(rows).max(axis=1)
    else:
        steps = {"int8": 255, "int4": 15, "int2": 3}[precision]
        # The zero point is a whole number of steps, so up to one is lost.
        steps, span = steps - 1, rows.max(axis=1) - rows.min(axis=1)
    # A scale is a bf16 that was rounded up, by less than one part in 128.
    return span / steps * (1 + 1 / 100) / 2
