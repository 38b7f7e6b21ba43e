"""How to train model on AMD EPYC: checkpoint every=2 + optimizer_in_backward.

Found by momadvise 0.1.0 on 2026-11-24 with torch 2.13.0+cpu, goal faster.

Use it::

    from wrapper import prepare  # wrapper.py, copied beside your code
    training = prepare(model)  # a plain model; as you build it today
    loss = training.step(batch)  # forward, backward and optimizer step; batch: 2 samples on the CPU
"""

import advisor

POLICY = advisor.Policy(
    methods=(
        advisor.use("checkpoint", every=2),  # Keeps only the input of one block in every k, and runs that block again in the backward pass.
        advisor.use("optimizer_in_backward"),  # Updates each parameter during the backward pass and frees its gradient at once.
    ),
    micro_batch=2,  # samples per forward pass
    accumulation_steps=1,  # forward-backward passes per optimizer step
)


def prepare(model, **options):
    """Apply the policy to `model` (in place) and return the training.

    Options, all optional: device, build_optimizer(parameters), compute_loss(model, batch), count_targets(batch),
    linear_head(model, batch), max_grad_norm, blocks. They are explained in `help(advisor.apply_policy)`.

    With a loop of your own, in place of `training.step(batch)`:
        for piece in training.split(batch):
            loss = training.forward(piece)  # times its share: do not divide it by the number of pieces
            training.backward(loss)
        training.optimizer_step()

    `training.model` and `training.optimizer` are yours to schedule, evaluate and save;
    `training.state_dict()["model"]` loads into a plain model.
    """
    return advisor.apply_policy(POLICY, model, **options)
