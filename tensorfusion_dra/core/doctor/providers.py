"""Findings about the providers of other packages: what they give, and what went wrong."""

from collections.abc import Sequence

from tensorfusion_dra.core.doctor.finding import Finding, ok, warning

_SEE = "see tensorfusion-dra inspect --providers"


def provider(
    subject: str, *, given: Sequence[str], errors: Sequence[str], refused: Sequence[str]
) -> Finding:
    """Judge a provider of another package by one call.

    Args:
        subject: Kind, name and package.
        given: Names that devices have from it.
        errors: What went wrong when it was called.
        refused: Names that no device has from it, with the reasons.
    """
    if errors:
        return warning(
            subject,
            errors[0],
            expected="an answer for every GPU, within its time",
            cure=f"repair the package, or leave it out with --disable-provider; {_SEE}",
        )
    if refused:
        return warning(
            subject,
            f"left out: {refused[0]}",
            expected="names and values that a device can have",
            cure=f"correct the package (docs/extend.md); {_SEE}",
        )
    return ok(subject, f"gives {', '.join(sorted(given)) or 'nothing at present'}")


def unused(subject: str, reason: str) -> Finding:
    """Return the finding that a registered provider is never called."""
    return warning(
        subject,
        f"not used: {reason}",
        expected="a name of its own",
        cure=f"rename its entry point, or uninstall one of the packages; {_SEE}",
    )
