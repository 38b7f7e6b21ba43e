import ctypes

from tiny import build_model, make_batch  # noqa: F401


def compute_loss(model, batch):
    ctypes.string_at(0)
