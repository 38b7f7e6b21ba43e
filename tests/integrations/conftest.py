"""Ranks, as the tests of distributed training start them."""

from tests.distributed.conftest import launcher

__all__ = ["launcher"]
