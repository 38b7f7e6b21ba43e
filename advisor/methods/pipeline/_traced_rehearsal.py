"""What the stages of one rank need and exchange, in a trace: there no other rank tells, and tensors have no values.

One pass of an own stage, with the blocks of all others left out, goes on to the loss. Its graph shows what is computed
before the blocks, beside them and after them, and so what every rank needs. Between stages, hidden states are taken to
look as an own block returns them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from advisor.errors import NothingPredictedError
from advisor.methods.pipeline._leaves import frozen_shown, leaves_of_graph, nodes_before
from advisor.methods.pipeline._outside import Calls, StandIn, outside_modules, stand_ins
from advisor.methods.pipeline._passage import Run
from advisor.methods.pipeline._places import StageLink, linked, parameters_of_blocks
from advisor.methods.pipeline._relay import Handed
from advisor.methods.pipeline._returned import Form
from advisor.methods.pipeline._stage_rehearsal import output_of_stage, used_in_stage
from advisor.methods.pipeline._stages import Stages
from advisor.training.block_call import BlockCall

__all__ = ["TracedRehearsal"]

_NUMBER = -1


class _Look(NamedTuple):
    """What a pass has shown.

    Attributes:
        hidden: What a block returns.
        loss: What the last stage returns.
        before: Identities of the leaves of what the first block of a model is given.
        beside: Of what blocks compute with besides, and of the own blocks.
        after: Of what follows the last block.
        form: How an own block returns hidden states.
    """

    hidden: torch.Tensor
    loss: torch.Tensor
    before: set[int]
    beside: set[int]
    after: set[int]
    form: Form


class TracedRehearsal:
    """Has the place of a :class:`~advisor.methods.pipeline._stage_rehearsal.Rehearsal` in a trace.

    Args:
        stages: The stages of this rank.
        owners: The rank of each stage.
        device: Where they compute.
        trained: For each block of the model, whether any of its parameters is trained.

    Attributes:
        handed: What each stage of the pipeline returns.
        not_needed: Modules that the stages of this rank can do without, in the place of whose forward functions are
            stand-ins.
        drew: Whether a stage draws random numbers; none has values here.
    """

    drew = False

    def __init__(self, stages: Stages, owners: Sequence[int], device: torch.device, trained: Sequence[bool]) -> None:
        self._stages = stages
        self._owners = owners
        self._device = device
        self._trained = trained
        self._used: list[set[int]] = []
        self.handed: list[Handed] = []
        self.not_needed: list[StandIn] = []

    def run(self, function: Callable[[], Any]) -> None:
        """Find out the shapes for a micro-batch of another kind."""
        self._note(self._look(function), {id(one) for one in self._stages.model.parameters() if one.requires_grad})

    def learn(self, function: Callable[[], Any]) -> None:
        """The same, and find out what each rank uses, and what this one can do without.

        Raises:
            MethodRefusedError: The model, or its loss, cannot be cut where it is.
            NothingPredictedError: What stages exchange cannot be known.
        """
        stages, model = self._stages, self._stages.model
        own = parameters_of_blocks(model)
        with frozen_shown(model, without=own) as trained:
            look = self._look(function)
        self._note(look, trained)
        beside, last = look.beside | own, len(self._owners) - 1
        self._used = [set(look.beside - own) for _ in range(1 + max(self._owners))]
        self._used[self._owners[0]] |= look.before
        self._used[self._owners[last]] |= look.after
        for stage in stages.own:
            self._used[self._owners[stage]] |= beside
        used = self._used[self._owners[stages.own[0]]]
        outside = [inner for module in outside_modules(model) for inner in module.modules()]
        alone = own - {id(one) for module in outside for one in module._parameters.values()}
        calls = Calls(outside, stages.passage)
        try:
            for stage in stages.own:
                given = self.handed[stage - 1].like(self._device) if stage else None
                run = stages.new_run(stage, given, watched=True)
                _, value = stages.run(run, stage, _NUMBER, function)
                used_in_stage(output_of_stage(value, is_last=run.is_last), run, alone)
        finally:
            calls.end()
        self.not_needed = stand_ins(model, used, calls, has_last=last in stages.own, device=self._device)

    def users(self, parameters: Mapping[str, nn.Parameter]) -> list[set[str]]:
        """For each rank the names of the parameters outside of blocks, and of own ones, that it computes with."""
        return [{name for name, one in parameters.items() if id(one) in used} for used in self._used]

    def late_buffers(self) -> set[str]:
        """None: they matter to saved states only."""
        return set()

    def costs(self) -> None:
        """Unknown: nothing takes any time."""

    def require_split(self) -> None:
        """Taken for granted: a training finds out."""

    def _note(self, look: _Look, trained: set[int]) -> None:
        """What each stage returns."""
        bounds = self._stages.bounds
        begins = bool((look.before | look.beside) & trained)
        hidden = [
            Handed(True, tuple(look.hidden.shape), look.hidden.dtype, begins or any(self._trained[:stop]))
            for stop in bounds[1:-1]
        ]
        self.handed = [*hidden, Handed(dtype=look.loss.dtype, requires_grad=True)]

    def _look(self, function: Callable[[], Any]) -> _Look:
        """A pass; how many values blocks return is tried, because the model reads what it gets for those left out."""
        passage = self._stages.passage
        error: Exception | None = None
        untried: list[Form] = [None, (False,), (False,) * 2, (False,) * 3]
        tried: list[Form] = []
        while untried:
            passage.usual = untried.pop(0)
            tried.append(passage.usual)
            try:
                look = self._pass(function)
            except NothingPredictedError:
                raise
            except Exception as raised:  # what the model makes of too many values, or of too few
                error = error or raised
                continue
            if look.form == passage.usual:
                return look
            if look.form not in tried:
                untried = [look.form, *(each for each in untried if each != look.form)]
        raise error or NothingPredictedError("blocks return several values, or not as many each time")

    def _pass(self, function: Callable[[], Any]) -> _Look:
        stages = self._stages
        stage = stages.own[0]
        run = Run(stages.blocks_of(stage), is_last=True)
        first = next(
            module
            for module in stages.model.modules()
            if isinstance(module, StageLink) and module.number == run.blocks.start
        )
        given: list[torch.Tensor] = []

        def note(link: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            read = BlockCall.read(linked(first), args, kwargs)
            given.extend([] if read is None else [read[0]])

        hook = first.register_forward_pre_hook(note, with_kwargs=True)
        try:
            _, loss = stages.run(run, stage, _NUMBER, function)
        finally:
            hook.remove()
        hidden = run.last_hidden
        assert hidden is not None, "a pass that goes on to the loss runs the last block"
        if given[0].shape != hidden.shape:
            raise NothingPredictedError(
                f"the blocks of stage {stage} return hidden states of another shape ({list(hidden.shape)}) than they "
                f"are given ({list(given[0].shape)}), and what the other stages exchange is not known"
            )
        return _Look(
            hidden=hidden.detach(),
            loss=loss.detach(),
            before=leaves_of_graph([given[0]]),
            beside=leaves_of_graph([hidden], without=nodes_before(given[0])),
            after=leaves_of_graph([loss], without=nodes_before(hidden)),
            form=run.forms[-1],
        )
