"""How fast a device computes, moves bytes and launches operators: the basis of predicted times."""

from __future__ import annotations

import math

import msgspec

from advisor.hardware.profiles import Profile

__all__ = ["Bandwidth", "DeviceRates"]


class Bandwidth(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes per second by number of bytes that an operator touches: few fit in a cache, many do not.

    Attributes:
        sizes: Bytes touched, growing.
        bytes_per_second: At each of them.
    """

    sizes: tuple[float, ...]
    bytes_per_second: tuple[float, ...]

    def __post_init__(self) -> None:
        assert self.sizes, "a bandwidth has at least one point"
        assert len(self.sizes) == len(self.bytes_per_second), "one rate for every size"
        assert all(rate > 0 for rate in self.bytes_per_second), f"rates are positive, got {self.bytes_per_second}"
        assert list(self.sizes) == sorted(set(self.sizes)), f"sizes grow, got {self.sizes}"

    @classmethod
    def constant(cls, bytes_per_second: float) -> Bandwidth:
        """The same for every size."""
        return cls(sizes=(1.0,), bytes_per_second=(bytes_per_second,))

    def at(self, size: float) -> float:
        """The rate for a size, interpolated in the size's logarithm; outside the known sizes, the nearest one's."""
        # Imported here to keep the import of the methods' declarations fast.
        import numpy as np

        logs = [math.log(known) for known in self.sizes]
        return float(np.interp(math.log(max(size, 1.0)), logs, self.bytes_per_second))


class DeviceRates(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rates of one device.

    Attributes:
        matmul_flops_per_second: Number format (``"float32"``, ``"tf32"``, ``"bfloat16"``, ``"float16"``, ``"float8"``)
            -> floating-point operations per second of a large matrix product. ``"float32"`` is always there.
        convolution_flops_per_second: The same for convolutions; for missing formats the matrix product's rate is used.
        bandwidth: Bytes read and written per second in memory that is already in use.
        fresh_bandwidth: Bytes written per second into memory that an operator takes for its result. On a CPU the
            operating system hands large blocks out page by page, at a fraction of the bandwidth.
        function_bytes_per_second: Bytes of float32 results per second of an exponential or the like; ``None`` if
            unknown: then only memory traffic counts, as on a GPU.
        random_bytes_per_second: The same for random numbers.
        to_device_bytes_per_second: From pinned host memory to the device; ``None`` if the host is the device.
        to_host_bytes_per_second: The way back.
        launch_seconds: Least time between the launches of two operators of a training; ``None`` if unknown: no
            document gives it, so predictions from published values leave it out.
        thread_rates: Number of threads of a CPU's operators -> small operators per second under the machine's current
            load; the largest number is torch's default. Empty for a GPU.
        measured: Whether these were measured. Published rates are peaks that no training reaches, so times predicted
            from them are lower bounds.
    """

    matmul_flops_per_second: dict[str, float]
    convolution_flops_per_second: dict[str, float] = {}
    bandwidth: Bandwidth
    fresh_bandwidth: Bandwidth
    function_bytes_per_second: float | None = None
    random_bytes_per_second: float | None = None
    to_device_bytes_per_second: float | None = None
    to_host_bytes_per_second: float | None = None
    launch_seconds: float | None = None
    thread_rates: dict[int, float] = {}
    measured: bool

    def __post_init__(self) -> None:
        assert self.matmul_flops_per_second.get("float32", 0) > 0, "every device multiplies matrices in float32"

    @classmethod
    def of_profile(cls, profile: Profile) -> DeviceRates | None:
        """The published rates of an absent device; ``None`` if no document gives the bandwidth or the float32 rate."""
        bandwidth = profile.memory_bandwidth.base_value
        short = {"float32": "fp32", "tf32": "tf32", "bfloat16": "bf16", "float16": "fp16", "float8": "fp8"}
        figures = {name: getattr(profile, f"{one}_rate").base_value for name, one in short.items()}
        known = {name: rate for name, rate in figures.items() if rate is not None}
        if bandwidth is None or "float32" not in known:
            return None
        link = profile.host_link_bandwidth.base_value
        return cls(
            matmul_flops_per_second=known,
            bandwidth=Bandwidth.constant(bandwidth),
            fresh_bandwidth=Bandwidth.constant(bandwidth),
            to_device_bytes_per_second=link,
            to_host_bytes_per_second=link,
            measured=False,
        )

    def matmul(self, number_format: str) -> float:
        """Operations per second of matrix products; formats that the device lacks are computed in float32."""
        rates = self.matmul_flops_per_second
        return rates.get(number_format, rates["float32"])

    def convolution(self, number_format: str) -> float:
        """Operations per second of convolutions."""
        return self.convolution_flops_per_second.get(number_format) or self.matmul(number_format)
