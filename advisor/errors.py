"""Everything that momadvise raises on purpose.

::

    MomadviseError
    ├── UserError                  the user can fix it: printed without a traceback, exit status 2
    │   ├── WorkloadError          the model file or functions do not meet the contract
    │   │   └── FewerSamplesError  make_batch returns fewer samples than requested
    │   ├── SearchSpaceError       a search space names something that does not exist
    │   ├── PolicyError            a policy file is malformed or of another version
    │   ├── MethodRefusedError     a method cannot apply to this model, hardware or policy
    │   ├── HardwareError          the requested device does not exist
    │   ├── OptionError            an option has a value outside its rule
    │   ├── OutputFolderError      the output folder is foreign, in use, or cannot be written
    │   └── SurroundingsError      the operating system refuses a resource
    ├── TrialError                 a required trial failed
    │   ├── NothingFitsError       no policy fits below the memory limit
    │   ├── FloorNotMetError       no size of the model keeps the requested throughput
    │   ├── NothingMeasuredError   the search ended without one usable measurement
    │   ├── NothingPredictedError  a step cannot be traced without running it
    │   └── PreferenceNotMetError  no point of the cost-latency frontier is within the requested limit
    ├── StageLostError             another rank of a pipeline failed, ended or did not answer in time
    └── DeviceOutOfMemoryError     live bytes rose above the memory limit (raised inside a trial)

A message states the rule, then the value, then the fix.
"""

from __future__ import annotations

__all__ = [
    "DeviceOutOfMemoryError",
    "FewerSamplesError",
    "FloorNotMetError",
    "HardwareError",
    "MethodRefusedError",
    "MomadviseError",
    "NothingFitsError",
    "NothingMeasuredError",
    "NothingPredictedError",
    "OptionError",
    "OutputFolderError",
    "PolicyError",
    "PreferenceNotMetError",
    "SearchSpaceError",
    "StageLostError",
    "SurroundingsError",
    "TrialError",
    "UserError",
    "WorkloadError",
]


class MomadviseError(Exception):
    """Base class of every error that momadvise raises on purpose."""


class UserError(MomadviseError):
    """A mistake that the user can fix; shown as its message alone."""


class WorkloadError(UserError):
    """The model file, module or functions do not meet the workload contract.

    ``traceback_text`` is the user's own traceback (without frames of momadvise), if their code raised.
    """

    def __init__(self, message: str, traceback_text: str | None = None) -> None:
        super().__init__(message)
        self.traceback_text = traceback_text


class FewerSamplesError(WorkloadError):
    """A batch has fewer samples than requested: the data ends there."""

    def __init__(self, asked: int, made: int) -> None:
        super().__init__(f"make_batch was asked for {asked} samples and returned {made}: there are no more")
        self.made = made


class SearchSpaceError(UserError):
    """A search space is malformed or names an unknown method, parameter or value."""


class PolicyError(UserError):
    """A policy file is malformed, of another schema version, or names unknown things."""


class MethodRefusedError(UserError):
    """A method cannot apply here; the message is the reason."""


class HardwareError(UserError):
    """The requested device does not exist or cannot be used."""


class OptionError(UserError):
    """An option or argument has a value outside its rule."""


class OutputFolderError(UserError):
    """The output folder belongs to another study, is in use, or cannot be written."""


class SurroundingsError(UserError):
    """The operating system refuses a resource: full disk, missing folder, process limit."""


class TrialError(MomadviseError):
    """A required trial ended with an outcome other than OK."""


class NothingFitsError(TrialError):
    """No policy of the space fits below the memory limit."""


class FloorNotMetError(TrialError):
    """No size of the model keeps the requested throughput."""


class NothingMeasuredError(TrialError):
    """The search ended without a single usable measurement."""


class NothingPredictedError(TrialError):
    """The memory of a policy cannot be predicted; the message says why, and that it can still be measured."""


class PreferenceNotMetError(TrialError):
    """No measured policy is within the requested latency, cost or deadline; the message gives the best."""


class StageLostError(MomadviseError):
    """Another rank of a pipeline failed, ended, or did not answer within the timeout of their process group."""


class DeviceOutOfMemoryError(MomadviseError):
    """Live tensor bytes rose above the memory limit; becomes the outcome ``OUT_OF_MEMORY``.

    Also raised by the ranks of a pipeline of which another one ran out of memory.
    """
