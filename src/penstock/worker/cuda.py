"""The few calls of the CUDA driver that a worker makes, through `cuda-bindings`.

TensorFlow has a context for its GPU (the device's primary one), and it is used here too: memory
that was allocated, pinned or copied in it is valid in TensorFlow's calls. TensorFlow gives no hold
on its own stream. So copies have a stream of their own, and the host waits until they are done
before TensorFlow is given the memory.

An error of the driver is mostly the end of the context (`DeviceLost`): every later call fails too,
and only a new process helps. Too little memory is not.
"""

from __future__ import annotations

import threading
from typing import Any

from penstock.errors import DeviceMemoryError


class DeviceLost(BaseException):
    """The GPU cannot be used any more in this process. Not for a model's code to catch."""


class Cuda:
    """The only GPU that this process sees."""

    def __init__(self) -> None:
        from cuda.bindings import driver

        self._driver: Any = driver
        self._mine = threading.local()
        self._check("initialize", driver.cuInit(0))
        device = self._check("find the device", driver.cuDeviceGet(0))
        self._context = self._check("use the context", driver.cuDevicePrimaryCtxRetain(device))

    def enter(self) -> None:
        """Before a thread's first call."""
        if not hasattr(self._mine, "entered"):
            self._check("enter the context", self._driver.cuCtxSetCurrent(self._context))
            self._mine.entered = True

    def stream(self) -> Any:
        """A new stream, which does not wait for others."""
        self.enter()
        flag = self._driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return self._check("make a stream", self._driver.cuStreamCreate(flag))

    def allocate(self, size: int) -> int:
        """Device memory. Raises `DeviceMemoryError`."""
        self.enter()
        return int(self._check(f"allocate {size} bytes", self._driver.cuMemAlloc(size)))

    def free(self, pointer: int) -> None:
        """Give device memory back."""
        self.enter()
        self._check("free", self._driver.cuMemFree(pointer))

    def memory(self) -> tuple[int, int]:
        """Bytes that are free on the device, and all of them."""
        self.enter()
        free, total = self._check("ask for memory", self._driver.cuMemGetInfo())
        return int(free), int(total)

    def upload(self, target: int, source: int, size: int, stream: Any) -> None:
        """Begin to copy bytes of the host's to the device."""
        (error,) = self._driver.cuMemcpyHtoDAsync(target, source, size, stream)
        if error:
            self._check("copy to the device", (error,))

    def upload_rows(
        self, target: int, source: int, pitch: int, size: int, rows: int, stream: Any
    ) -> None:
        """Begin to copy `rows` pieces of `size` bytes, each `pitch` bytes behind the one before."""
        driver = self._driver
        copy = driver.CUDA_MEMCPY2D()
        copy.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_HOST
        copy.srcHost = source
        copy.srcPitch = pitch
        copy.dstMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
        copy.dstDevice = target
        copy.dstPitch = size
        copy.WidthInBytes = size
        copy.Height = rows
        self._check("copy rows to the device", driver.cuMemcpy2DAsync(copy, stream))

    def duplicate(self, target: int, source: int, size: int, stream: Any) -> None:
        """Begin to copy bytes within the device."""
        (error,) = self._driver.cuMemcpyDtoDAsync(target, source, size, stream)
        if error:
            self._check("copy within the device", (error,))

    def wait(self, stream: Any) -> None:
        """Until everything that was begun on this stream is done."""
        (error,) = self._driver.cuStreamSynchronize(stream)
        if error:
            self._check("wait for copies", (error,))

    def pin(self, address: int, size: int) -> str:
        """Pin the host's memory; returns why not, or ""."""
        self.enter()
        flag = self._driver.CU_MEMHOSTREGISTER_PORTABLE
        (error,) = self._driver.cuMemHostRegister(address, size, flag)
        return self._name(error) if error else ""

    def unpin(self, address: int) -> str:
        """Unpin what was pinned; returns why not, or ""."""
        self.enter()
        (error,) = self._driver.cuMemHostUnregister(address)
        return self._name(error) if error else ""

    def _check(self, what: str, result: tuple[Any, ...]) -> Any:
        error, *rest = result
        if error:
            if error == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
                raise DeviceMemoryError(f"the GPU could not {what}: it has too little memory left")
            raise DeviceLost(f"the GPU could not {what}: {self._name(error)}")
        return rest[0] if len(rest) == 1 else tuple(rest)

    def _name(self, error: Any) -> str:
        return str(getattr(error, "name", error))
