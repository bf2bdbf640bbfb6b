"""Claims that were admitted under a quota and are perhaps not stored yet.

Kubernetes creates many claims at once, and stores each only after it was admitted. So an admitted
claim is written into an annotation of a quota of its namespace, from which all replicas of the
webhook count it. The write fails if another replica was faster. A reservation counts until the
claim was seen at the API server with these amounts, at most for 35 s. A claim whose limit was
lowered counts with the old one for the whole 35 s, in which its node follows.

A stranger may post reviews of claims that do not exist. So a reservation that may be a stranger's
counts against others of this kind, and keeps a pod's claim waiting only for 3 s. That
is one second to write the reservation, and two in which this webhook may validate the claim.

Example, of a quota of 10Gi:

    tensor-fusion.ai/dra-admitted: '{"uid-a":[1764342035,"a",true,{"requests.vram":"8Gi"}]}'

Claim a was admitted at most 35 s ago. Until it is stored, a claim of 4Gi is refused because of it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tensorfusion_dra.core import names
from tensorfusion_dra.core.admission.quota import Amounts
from tensorfusion_dra.core.errors import DriverError
from tensorfusion_dra.core.kubernetes import quantity, review, untyped_json

Item = Mapping[str, Any]

STORED_SECONDS: Final = 35.0
"""Other validating webhooks are asked at the same time, for 30 s at most."""
STRANGER_SECONDS: Final = 3.0
_MAX_TRUSTED: Final = 500
_MAX_OTHERS: Final = 50
"""In one namespace at a time; each has about 200 bytes of the annotation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Amounts reserved for an admitted claim.

    Attributes:
        ends_at: Unix time after which it does not count.
        name: The claim's name; "" if it has none.
        is_trusted: False if a stranger may have posted the review.
    """

    ends_at: float
    name: str
    is_trusted: bool
    amounts: Amounts

    def keeps_waiting(self, now: float) -> bool:
        """Return True if a pod's claim waits until this one is stored, or turns out not to be."""
        return self.is_trusted or now < self.ends_at - STORED_SECONDS + STRANGER_SECONDS


def most(one: Amounts, other: Amounts) -> Amounts:
    """Return the larger one of each amount."""
    return {**one, **{key: max(other[key], one.get(key, other[key])) for key in other}}


def of_claim(
    claim: Item, charged: Amounts, before: Reservation | None, *, is_trusted: bool, now: float
) -> Reservation:
    """Return the reservation of a claim that is admitted now.

    Args:
        charged: What the claim is charged.
        before: Its earlier one. Either of two changes may be stored last, so the larger amounts
            count.
    """
    new = Reservation(
        ends_at=now + STORED_SECONDS,
        name=str(claim["metadata"].get("name", "")),
        is_trusted=is_trusted,
        amounts=charged,
    )
    if before is None:
        return new
    return replace(
        new,
        ends_at=max(new.ends_at, before.ends_at),
        is_trusted=is_trusted or before.is_trusted,
        amounts=most(before.amounts, new.amounts),
    )


def of_quotas(quotas: Iterable[Item], *, now: float) -> dict[str, Reservation]:
    """Return the reservations that still count, by the claim's UID.

    Raises:
        DriverError: An annotation is malformed, so it is not known what was admitted.
    """
    found = {}
    for each in quotas:
        text = review.annotations_of(each).get(names.QUOTA_ADMITTED, "{}")
        try:
            entries: Any = untyped_json.parse(text.encode())
            for uid, (ends_at, name, is_trusted, amounts) in entries.items():
                found[str(uid)] = Reservation(
                    ends_at=float(ends_at),
                    name=str(name),
                    is_trusted=is_trusted is True,
                    amounts={key: quantity.parse(amount) for key, amount in amounts.items()},
                )
        except (ValueError, TypeError, AttributeError, DriverError) as error:
            raise DriverError(
                f"GPUResourceQuota {each['metadata']['name']}: {names.QUOTA_ADMITTED}: found "
                f"{text[:80]!r}, expected what the webhook wrote; remove the annotation"
            ) from error
    return {uid: each for uid, each in found.items() if each.ends_at > now}


def text_of(found: Mapping[str, Reservation]) -> str:
    """Return the annotation for reservations.

    Raises:
        DriverError: There are too many.
    """
    for is_trusted, most_of in ((True, _MAX_TRUSTED), (False, _MAX_OTHERS)):
        count = sum(each.is_trusted is is_trusted for each in found.values())
        if count > most_of:
            raise DriverError(
                f"found {count} claims that were just admitted, expected at most {most_of} at a "
                "time; try again"
            )
    return untyped_json.compact_json(
        {
            uid: [
                *(round(each.ends_at, 1), each.name, each.is_trusted),
                {key: str(amount) for key, amount in each.amounts.items()},
            ]
            for uid, each in found.items()
        }
    )
