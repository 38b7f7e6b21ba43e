"""Share a CPU's operators among fewer threads than torch takes by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advisor.goal import Fidelity
from advisor.hardware.hardware import DeviceKind, Hardware
from advisor.methods.applying import judged, require
from advisor.methods.base import Method, Parameter, Stage, Verdict
from advisor.methods.setting import Parameters, ParameterValue
from advisor.text.units import format_count
from advisor.workload.facts import Facts

if TYPE_CHECKING:
    from advisor.training.training import Training

__all__ = ["IntraopThreads"]

_NAME = "intraop_threads"


class IntraopThreads(Method):
    """Calls ``torch.set_num_threads`` with a smaller number than the process began with.

    torch starts a thread for every core and cuts each operator into as many parts. The operator ends with its slowest
    part, for which the other threads spin: if another program keeps a core busy, a step can take ten times as long as
    on one thread. So it does always in a container that may use two of 64 cores. Small tensors are not worth sharing.
    """

    name = _NAME
    summary = "Shares each of a CPU's operators among fewer threads, so that none waits for a core that others use."
    fidelity = Fidelity.ROUNDING
    gradient_tolerance = 1e-4
    update_tolerance = 0.1  # As everywhere, Adam blows up gradients that are zero but for rounding.
    saves = frozenset()
    costs = "the cores that are left idle, where nothing else uses them"
    pays = "on a CPU that other programs use too, in containers with a quota of cores, and for small tensors"
    rests_on = (
        "The number of threads suits what else runs on this machine now: when that changes, measure again with another "
        "--output."
    )
    does_not_pay = "on an idle machine whose steps are large matrix products"
    stage = Stage.PARALLELIZE
    parameters = (
        Parameter("count", (1, 2, 4, 8, 16, 32), "threads that share an operator; fewer than torch has by itself"),
    )
    one_device_only = "processes that share a machine have a thread each already"
    citation = "PyTorch documentation, CPU threading and TorchScript inference; libgomp manual, GOMP_SPINCOUNT"

    def applicable(self, parameters: Parameters, facts: Facts | None, hardware: Hardware) -> Verdict:
        """Only on a CPU, and only for fewer threads than there are."""
        verdict = _judge_device(hardware.device, on_cpu=hardware.kind is DeviceKind.CPU)
        if not verdict.applicable:
            return verdict
        rates = None if facts is None else facts.device_rates
        has = hardware.host_cores if rates is None else max(rates.thread_rates, default=1)
        threads = format_count(has, "thread")
        return judged(int(parameters["count"]) < has, f"this training has no more than {threads} by itself")

    def measured_time_ratio(self, parameters: Parameters, facts: Facts) -> float | None:
        """By the operators that the probe ran with so many threads and with all; unmeasured, nobody would choose it."""
        rates = {} if facts.device_rates is None else facts.device_rates.thread_rates
        rate = rates.get(int(parameters["count"]))
        return 1.0 if rate is None else rates[max(rates)] / rate

    def apply(self, training: Training, **parameters: ParameterValue) -> None:
        """Change the number for the process, until the training closes."""
        import torch

        from advisor.training.process_setting import hold, is_held

        require(_judge_device(str(training.device), on_cpu=training.device.type == "cpu"))
        count, has = int(parameters["count"]), torch.get_num_threads()
        if count >= has and not is_held(_NAME):  # what another training set is not the process's own
            threads = format_count(has, "thread")
            training.notes.append(f"{_NAME} changed nothing: this process has no more than {threads} by itself")
            return
        hold(training, _NAME, count, read=torch.get_num_threads, write=torch.set_num_threads)


def _judge_device(device: str, *, on_cpu: bool) -> Verdict:
    return judged(on_cpu, f"it is about the threads of a CPU's operators, and the training's run on {device}")
