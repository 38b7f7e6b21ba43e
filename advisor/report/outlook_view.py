"""The output of ``momadvise predict``: whether it fits, and a bar for everything that takes memory."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.padding import Padding
from rich.text import Text

from advisor.predict.policy_outlook import AtBatch, Outlook
from advisor.predict.prediction import Category, Manner
from advisor.report.cells import Unbroken
from advisor.report.console import speaks_unicode
from advisor.report.wording import meshed_words
from advisor.text.units import format_bytes, format_count, format_rate, format_seconds

__all__ = ["OutlookView"]

_NAMES = {
    Category.PARAMETERS: "parameters",
    Category.BUFFERS: "buffers",
    Category.GRADIENTS: "gradients",
    Category.OPTIMIZER_STATE: "optimizer state",
    Category.ACTIVATIONS: "activations",
    Category.TEMPORARIES: "temporaries",
    Category.BATCH: "the batch",
}

_PHASES = {
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "optimizer step",
    "idle": "pause between steps",
}

_VALUES = 10
"""Columns of ``"999 MiB"`` with a blank on either side."""
_SHARE = 5
_WIDEST_BAR = 60
_SHOWN_FROM = 0.0005
"""A smaller share of the peak would be shown as 0%."""


@dataclass(frozen=True)
class OutlookView:
    """The outlook for a terminal of any width."""

    outlook: Outlook

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The answer, a chart for the requested batch and one for the largest, and the notes."""
        outlook = self.outlook
        methods = " + ".join(meshed_words(outlook.policy))
        yield Text(f"{outlook.workload}: {methods} on {outlook.device}", style="bold")
        what = "nothing was trained, nothing was measured."
        if any(step.measured_rates for step in outlook.times):
            what = "nothing was trained, and of the device only its rates were measured."
        yield Text(f"Predicted from a trace; {what}", style="dim")
        yield Text()
        yield self._answer()
        charts = [outlook.asked]
        if outlook.largest is not None and outlook.largest.micro_batch != outlook.asked.micro_batch:
            charts.append(outlook.largest)
        for at in charts:
            yield Text()
            yield from self._chart(at, console, options)
        if outlook.reserved:
            yield Text()
            yield from self._allocator(options.max_width)
        if outlook.times:
            yield Text()
            yield from self._times()
        yield Text()
        for note in self._notes():
            yield Unbroken(note, style="dim")

    def _answer(self) -> Text:
        outlook, asked = self.outlook, self.outlook.asked
        limit = format_bytes(outlook.limit_bytes)
        needed = asked.peak_bytes if outlook.allocator is None else outlook.allocator.peak_bytes
        verdict, comparison = ("It fits", "of") if outlook.fits else ("It does not fit", "but there are")
        if outlook.largest is not None:
            # A replay finds it to within one percent.
            about = "about " if outlook.reserved and outlook.largest.micro_batch >= 100 else ""
            largest = f"The largest batch that fits is {about}{outlook.largest.micro_batch:,}."
        elif outlook.fits:
            largest = "The batch adds nothing to the peak: every batch fits."
        else:
            largest = "Not even a batch of 1 fits."
        return Text.assemble(
            (verdict, "green" if outlook.fits else "red"),
            f": batch {asked.micro_batch:,} ({outlook.batch_from}) needs {format_bytes(needed)} {comparison} {limit} "
            f"({outlook.limit_from}). {largest}",
        )

    def _chart(self, at: AtBatch, console: Console, options: ConsoleOptions) -> RenderResult:
        # Without the overload: log_softmax_backward_data.
        operator = f", {at.operator.split('.')[0].lstrip('_')}" if at.operator else ""
        yield Text(
            f"Batch {at.micro_batch:,}: {format_bytes(at.peak_bytes)} at the peak "
            f"({_PHASES.get(at.phase, at.phase)}{operator})",
            style="bold",
        )
        shown = _SHOWN_FROM * at.peak_bytes
        largest_first = sorted(at.parts.items(), key=lambda part: -part[1])
        parts = {_NAMES[category]: count for category, count in largest_first if count >= shown}
        widest = max(map(len, parts), default=0)
        columns = max(4, min(_WIDEST_BAR, options.max_width - widest - 3 - _VALUES - _SHARE))
        largest = max(parts.values(), default=1)
        for name, count in parts.items():
            bar = _bar(count / largest, columns, unicode=speaks_unicode(console))
            line = Text(f"  {name:<{widest}}", no_wrap=True)
            line.append(f"{format_bytes(count):>{_VALUES}}")
            line.append(f"{count / at.peak_bytes:>{_SHARE}.0%} ", style="dim")
            yield line.append(bar, style="cyan")
        peaks = ", ".join(
            f"{_PHASES.get(phase, phase)} {format_bytes(count)}"
            for phase, count in at.phase_peaks.items()
            if phase != "idle"
        )
        yield Padding(Text(f"peaks: {peaks}", style="dim"), (0, 0, 0, 2))

    def _allocator(self, width: int) -> RenderResult:
        """The allocator's memory: more than the tensors', because it keeps memory for reuse."""
        yield Text("Reserved by torch's caching allocator (this decides what fits)", style="bold")
        for one in self.outlook.reserved:
            words = "with expandable_segments" if one.expandable else "by default"
            line = f"  {words:<24}  {format_bytes(one.peak_bytes):>9} at batch {one.micro_batch:,}"
            if one.largest_batch:
                line += ";"
                largest = f"largest batch {one.largest_batch:,} ({format_bytes(one.largest_peak_bytes)})"
                if len(f"{line} {largest}") > width:
                    yield Text(line)
                    line = " " * len("  with expandable_segments ")
                line += f" {largest}"
            yield Text(line)

    def _times(self) -> RenderResult:
        first = self.outlook.times[0]
        basis = "on measured rates" if first.measured_rates else "at published peak rates, which no training reaches"
        yield Text(f"Time of a step, predicted {basis}", style="bold")
        for step in self.outlook.times:
            rate = format_rate(step.predicted_samples_per_second)
            yield Text(f"  batch {step.batch:,}: {format_seconds(step.predicted_seconds)}, {rate} samples/s")
            for one in step.phases:
                words = f"{_PHASES[one.phase.value]:<14} {format_seconds(one.predicted_seconds):>8}"
                yield Text(f"    {words}  bound by {one.bound.value}")
            yield Text(f"    {format_rate(step.intensity)} floating-point operations for each byte moved")

    def _notes(self) -> list[str]:
        outlook = self.outlook
        batches = " and ".join(map(str, outlook.traced_at))
        steps = outlook.policy.accumulation_steps
        notes = [
            f"One step was traced without memory at batch {batches} in {format_seconds(outlook.trace_seconds)}; "
            "memory is what tensors take on the device."
        ]
        if outlook.manner is Manner.FITTED:
            notes.append(
                "The step itself changes with the batch: away from the traced batches this is a line through two "
                "points, and a real run may need more."
            )
        if steps > 1:
            notes.append(
                f"This is the batch of one pass; the policy makes {format_count(steps, 'pass', 'passes')} per step."
            )
        return [*notes, *outlook.notes]


def _bar(share: float, columns: int, *, unicode: bool) -> str:
    """A bar of a share of the columns; an eighth of a column is the least that can be shown."""
    if not unicode:
        return "#" * max(1, round(share * columns))
    whole, eighths = divmod(max(1, round(share * columns * 8)), 8)
    return "█" * whole + (chr(ord("█") + 8 - eighths) if eighths else "")
