"""Price of one device per hour: given by the user, or else from its profile."""

from __future__ import annotations

from advisor.errors import OptionError
from advisor.goal import Price
from advisor.hardware.profiles import Profile

__all__ = ["resolve_price"]


def resolve_price(given: Price | None, profile: Profile | None, *, device_name: str) -> Price:
    """The price to use.

    Args:
        given: ``--price``, if it was given.
        profile: The published values of the device, if it has any.
        device_name: The device for people.

    Returns:
        The price; the source of a profile's begins with the profile's file.

    Raises:
        OptionError: There is no price; the message says why the profile has none.
    """
    if given is not None:
        return given
    figure = None if profile is None else profile.price
    if profile is not None and figure is not None and figure.value is not None:
        source = f"profiles/{profile.name}.yaml: {figure.source}"
        return Price(usd_per_hour=figure.value, source=source, date=figure.date)
    why = (
        "there is no profile of this device"
        if profile is None or figure is None
        else f"profiles/{profile.name}.yaml has none: {figure.note}"
    )
    raise OptionError(
        f"--goal cheapest needs the price of an hour of one device, but {why} (device: {device_name}). "
        "Say it with --price USD, e.g. --price 2.49."
    )
