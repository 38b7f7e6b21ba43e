"""Price of one device per hour: given by the user, or else from its profile."""

from __future__ import annotations

from advisor.errors import OptionError
from advisor.goal import Price
from advisor.hardware.profiles import Profile

__all__ = ["resolve_price"]


def resolve_price(given: Price | None, profile: Profile | None, *, device_name: str) -> Price:
    """The price that was given, or that of the device's profile, whose source begins with the profile's file.

    Raises:
        OptionError: There is no price; the message says why the profile has none.
    """
    if given is not None:
        return given
    why = "there is no profile of this device"
    if profile is not None:
        figure, file = profile.price, f"profiles/{profile.name}.yaml"
        if figure.value is not None:
            return Price(usd_per_hour=figure.value, source=f"{file}: {figure.source}", date=figure.date)
        why = f"{file} has none: {figure.note}"
    raise OptionError(
        f"--goal cheapest needs the price of an hour of one device, but {why} (device: {device_name}). "
        "Say it with --price USD, e.g. --price 2.49."
    )
