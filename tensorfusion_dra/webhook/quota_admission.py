"""Quotas by amount: refuses a claim that would take its namespace over a GPUResourceQuota."""

import time
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import Any, Final, Protocol

from tensorfusion_dra.core.admission import quota
from tensorfusion_dra.core.errors import DriverError, InputError, RetryableError
from tensorfusion_dra.core.kubernetes import review
from tensorfusion_dra.core.kubernetes.field_errors import FieldError, Reason
from tensorfusion_dra.core.kubernetes.review import PASSED, Review, Verdict
from tensorfusion_dra.driver.ports import Objects

Item = Mapping[str, Any]

_STORED_SECONDS: Final = 10.0
"""Time until a claim that was admitted is in every list, or was refused by somebody else."""


class ClaimReader(Protocol):
    """ResourceClaims at the API server."""

    def of_namespace(self, name: str, *, wait_seconds: float) -> Sequence[Item]:
        """Return the claims of a namespace as they are stored now.

        Raises:
            RetryableError: The API server answered with an error, or not within the time.
        """
        ...


class QuotaAdmission:
    """Rule for new claims in namespaces with a quota; safe for all threads.

    Kubernetes creates many claims at once, and a claim is stored only after it was admitted. So
    those that were just admitted here count until they are in the list. Another replica of the
    webhook does not know them: two replicas can each give away the same rest of a quota.
    """

    def __init__(self, quotas: Objects, claims: ClaimReader) -> None:
        """Store the arguments; nothing is read yet.

        Args:
            quotas: The GPUResourceQuotas of all namespaces.
            claims: Read once for each claim in a namespace with a quota.
        """
        self._quotas = quotas
        self._claims = claims
        self._lock = Lock()  # guards _admitted
        self._admitted: dict[str, tuple[float, str, str, quota.Amounts]] = {}  # by UID

    def claim(self, asked: Review) -> Verdict:
        """Refuse a new claim for which its namespace's quotas leave too little."""
        claim, namespace = asked.document, asked.namespace
        if not asked.is_creation:
            return PASSED
        try:
            quotas = [
                each for each in self._quotas.items() if each["metadata"]["namespace"] == namespace
            ]
            if not quotas or not quota.shares(claim):
                return PASSED
            wait_seconds = asked.wait_seconds
            stored = self._claims.of_namespace(namespace, wait_seconds=wait_seconds)
            errors = self._refusals(asked, quotas, stored)
        except InputError:
            return PASSED  # the cluster does not have the kind
        except RetryableError as error:
            return review.unavailable(error)
        except DriverError as error:
            errors = [str(error)]
        found = [FieldError("spec.devices.requests", Reason.FORBIDDEN, text) for text in errors]
        return Verdict(errors=found) if found else PASSED

    def _refusals(
        self,
        asked: Review,
        quotas: Sequence[Item],
        stored: Sequence[Item],
    ) -> list[str]:
        """Return why quotas refuse the claim; if none does, count it from now on."""
        others = {each["metadata"]["name"]: quota.counted(each) for each in stored}
        metadata, now = asked.document["metadata"], time.monotonic()
        name, uid = str(metadata.get("name", "")), str(metadata.get("uid", ""))
        with self._lock:
            self._admitted = {
                key: each for key, each in self._admitted.items() if now - each[0] < _STORED_SECONDS
            }
            for _, where, other, amounts in self._admitted.values():
                if where == asked.namespace:
                    others.setdefault(other, amounts)
            errors = [
                text for each in quotas for text in quota.refusals(each, asked.document, others)
            ]
            if not errors and not asked.dry_run:
                self._admitted[uid] = (now, asked.namespace, name, quota.counted(asked.document))
        return errors
