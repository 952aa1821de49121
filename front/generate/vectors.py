"""Vectors of texts: how tokens become one, and how long it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from camshaft.errors import RequestError
from camshaft.request import POOLINGS, Pooling, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from camshaft.info import EngineInfo
    from camshaft.text import TextModel

    Vector = NDArray[np.float32]


def pooled(wanted: Pooling | None, text: TextModel, info: EngineInfo) -> SamplingParams:
    """Return the parameters of requests for vectors.

    Args:
        wanted: How to pool. None is what the model was trained for, where its files say so; else
            the last token of a model that generates, which alone has seen all of the text, and
            the mean over those of an encoder.
        text: Of the model.
        info: Of the engine.

    Raises:
        RequestError: The model's files name a pooling that there is not here.
    """
    named = wanted or text.pooling or ("last" if info.generates else "mean")
    found = next((one for one in POOLINGS if one == named), None)
    if found is None:
        raise RequestError(
            f"pooling: this model was made for '{named}', which there is not here; choose one of "
            f"{', '.join(POOLINGS[1:])}",
            param="pooling",
            code="unsupported",
        )
    return SamplingParams(max_tokens=1, temperature=0.0, ignore_eos=True, pooling=found)


def unit(vector: Sequence[float]) -> Vector:
    """Return a vector at length 1 (L2); one of zeros stays what it is."""
    exact = np.asarray(vector, dtype=np.float64)
    length = float(np.sqrt(exact @ exact))
    return (exact / (length or 1.0)).astype(np.float32)
