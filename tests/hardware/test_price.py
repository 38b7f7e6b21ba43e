"""Where the price of a device-hour comes from, and what is said when nobody knows it."""

from __future__ import annotations

import msgspec
import pytest

from advisor.errors import OptionError
from advisor.goal import Price
from advisor.hardware.profiles import Figure, Profile, load_profiles, resolve_price

GIVEN = Price(usd_per_hour=2.49, source="--price", date="as given")


@pytest.fixture(params=sorted(load_profiles()))
def profile(request: pytest.FixtureRequest) -> Profile:
    return load_profiles()[request.param]


def without_price(note: str) -> Profile:
    figure = Figure(value=None, unit="USD/hour", source="none found", date="2026-11-21", note=note)
    return msgspec.structs.replace(load_profiles()["l4"], name="made_up", price=figure)


def test_a_profiles_price_comes_with_its_source_and_date(profile: Profile) -> None:
    price = resolve_price(None, profile, device_name="a device")
    assert price.usd_per_hour == profile.price.value
    assert price.source == f"profiles/{profile.name}.yaml: {profile.price.source}"
    assert price.date == profile.price.date


def test_the_users_own_price_comes_first(profile: Profile) -> None:
    assert resolve_price(GIVEN, profile, device_name="a device") == GIVEN
    assert resolve_price(GIVEN, None, device_name="a device") == GIVEN


def test_a_missing_price_names_the_option_and_why_the_profile_has_none() -> None:
    with pytest.raises(OptionError, match=r"profiles/made_up.yaml has none: not for rent .*--price USD"):
        resolve_price(None, without_price("not for rent"), device_name="NVIDIA X1")


def test_a_device_without_a_profile_needs_a_price() -> None:
    with pytest.raises(OptionError, match=r"there is no profile of this device \(device: NVIDIA X1\).*--price USD"):
        resolve_price(None, None, device_name="NVIDIA X1")
