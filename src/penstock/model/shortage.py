"""Too little memory on a device, by whichever of its errors TensorFlow says so. Imports none of it.

Its own allocator raises `ResourceExhaustedError`. XLA, CUDA's libraries and copies to the device
run out of memory inside other errors, and only their texts tell. A disk that is full raises the
same as the allocator.
"""

from __future__ import annotations

_INSIDE = ("InternalError", "UnknownError", "AbortedError", "NotFoundError")
_TEXTS = (
    "RESOURCE_EXHAUSTED",  # XLA
    "Out of memory",
    "OUT_OF_MEMORY",  # CUDA
    "STATUS_ALLOC_FAILED",  # cuDNN and cuBLAS
    "Dst tensor is not initialized",  # there was no memory for the copy of a tensor
)
_OF_FILES = ("No space left on device", "Disk quota exceeded", "Too many open files")

# XLA's autotuner, where nothing that it knows had the memory to be tried, or nothing is right.
_UNTRIED = "No valid config found"


def leaves_no_room(error: BaseException) -> bool:
    """Of a model that was compiled in this way before, at another size: as `is_out_of_memory`."""
    return is_out_of_memory(error) or (type(error).__name__ in _INSIDE and _UNTRIED in str(error))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether TensorFlow says that a device had too little memory for what was asked of it."""
    kind = type(error).__name__
    if is_about_files(error):
        return False
    if kind == "ResourceExhaustedError":
        return True
    return kind in _INSIDE and any(text in _said(error) for text in _TEXTS)


def is_about_files(error: BaseException) -> bool:
    """Whether something could not be written, which says nothing of a model or its device.

    XLA's calls fail so where their programs cannot be kept (`xla_cache`).
    """
    return any(text in _said(error) for text in _OF_FILES)


def _said(error: BaseException) -> str:
    """Its text; those of users' own may have none."""
    try:
        return str(error)
    except Exception:
        return ""
