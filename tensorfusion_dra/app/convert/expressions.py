"""Second pass: translation of CEL in the user guide's dialect, in selectors and annotations."""

from collections.abc import Iterator

from yaml.nodes import MappingNode, Node, ScalarNode

from tensorfusion_dra.app.convert import kinds, scalars, source
from tensorfusion_dra.app.convert.changes import Changes, Reason
from tensorfusion_dra.core import names
from tensorfusion_dra.core.cel import translate
from tensorfusion_dra.core.cel.errors import CelError


def find(document: Node, changes: Changes) -> None:
    """Collect the translations in a document, which may be an object or a part of one."""
    for item in kinds.objects([document]):
        if kinds.is_ours(item):
            for node in kinds.selecting(item):
                _selectors(node, changes)
    for scalar in _annotations(document):
        _translate(scalar, changes)


def _selectors(node: MappingNode, changes: Changes) -> None:
    for key in ("selectors", "selector"):
        found = source.value(node, key)
        listed = [found] if isinstance(found, MappingNode) else source.items(found)
        for selector in listed:
            expression = source.value(selector, "cel", "expression")
            if isinstance(expression, ScalarNode):
                _translate(expression, changes)


def _annotations(node: Node) -> Iterator[ScalarNode]:
    """Yield the expressions in annotations at any depth, as of pods and of pod templates."""
    for entry in source.entries(node):
        if entry.key.value == names.ANNOTATION_CEL_EXPRESSION:
            if isinstance(entry.value, ScalarNode):
                yield entry.value
        else:
            yield from _annotations(entry.value)
    for item in source.items(node):
        yield from _annotations(item)


def _translate(scalar: ScalarNode, changes: Changes) -> None:
    try:
        found = translate.changes(scalar.value)
    except CelError as error:
        offset = error.offset
        line = scalars.line_of(offset, scalar, changes.source) + 1
        changes.problems.append(Reason(line, f"expression {error}"))
        return
    for edit in scalars.in_text(found, scalar, changes.source):
        changes.edit(edit.start, edit.end, edit.text)
    if found:
        changes.reason(scalar, "user guide's CEL, translated for Kubernetes")
