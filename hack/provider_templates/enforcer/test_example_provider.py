"""The enforcer's edits, and the driver's rules for enforcers."""

from collections.abc import Sequence

from example_provider import Limiter

from tensorfusion_dra import testing
from tensorfusion_dra.extend import Edits, Limit


def limits_of(edits: Edits) -> Sequence[Limit]:
    """Return the limits as the library reads them."""
    found = [value for key, value in edits.env.items() if key.startswith("EXAMPLE_LIMIT_")]
    return [
        Limit(sm_percent=int(percent), vram_bytes=int(size))
        for percent, size in (value.split(",") for value in found)
    ]


def test_conforms() -> None:
    testing.check_enforcer(Limiter, limits_of=limits_of)


def test_library_has_to_be_on_the_host() -> None:
    enforcer = Limiter.from_settings(testing.enforcer_settings("example-provider"))

    needs = enforcer.needs(testing.claim(testing.share()))

    assert needs.files == ("/run/tensor-fusion/example-provider/limiter.so",)
