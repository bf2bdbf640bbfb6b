"""Type check of selectors without a CEL library.

The check walks an expression as cel-go's checker does. It knows the fields of `device`, the types
of quantities and versions, and the types of this driver's attributes. A value of which it knows
nothing may have any type, so that no selector is refused by mistake:

    device.nosuch == "x"                             no such field: refused
    device.capacity["…"].tflops >= 100               a Quantity as operand of >=: refused
    device.attributes["…"].model > 5                 a string compared with an integer: refused
    device.attributes["nic.example.com"].speed > 5   unknown type: accepted

An API server refuses the first two lines as well. It accepts the third, because it does not know
the types of attributes, and then the scheduling of the pod fails on every device.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NoReturn

from tensorfusion_dra.core.cel import macros, parser, types
from tensorfusion_dra.core.cel.errors import CelError
from tensorfusion_dra.core.cel.syntax import (
    Binary,
    Call,
    Index,
    ListLiteral,
    Literal,
    Logic,
    MapLiteral,
    Name,
    Node,
    Select,
    Ternary,
    Unary,
    children,
)
from tensorfusion_dra.core.cel.tokens import TokenKind
from tensorfusion_dra.core.cel.types import BOOL, DEVICE, DYN, INT, QUANTITY, STRING, Type

Bound = Mapping[str, Type]

_LITERALS: Final = {
    TokenKind.INT: types.INT,
    TokenKind.UINT: types.UINT,
    TokenKind.DOUBLE: types.DOUBLE,
    TokenKind.STRING: types.STRING,
    TokenKind.BYTES: types.BYTES,
}
_ORDERS: Final = frozenset({"<", "<=", ">", ">="})
_SCALARS: Final = frozenset({"string", "bool", "int", "uint", "double", "Quantity", "Semver"})
_OF_QUANTITIES: Final = types.QUANTITY_METHODS.keys() | types.VERSION_METHODS.keys()
_NAMESPACES: Final = frozenset(
    {"cel", "optional", "math", "sets", "base64", "google", "strings", "lists", "format", "net"}
    | {"bool", "int", "uint", "double", "string", "bytes", "list", "map", "type", "null_type"}
    | {"optional_type", "kubernetes", "ip", "cidr", "url", "dyn", "regex", "json"}
)
"""Names that are not variables: types, and prefixes of function names."""


def check(expression: str) -> None:
    """Return if the types in an expression fit, as far as they are known here.

    Args:
        expression: Kubernetes' CEL, not the guide's dialect.

    Raises:
        CelError: It is not valid CEL, or a part of it would be refused by the API server or fail on
            every device.
    """
    checker = _Checker(expression)
    node = parser.parse(expression)
    found = checker.type(node, {})
    if found.is_known and found.name != "bool":
        checker.refuse(f"found {found.shown()}, expected true or false", node)


class _Checker:
    def __init__(self, expression: str) -> None:
        self._expression: Final = expression

    def type(self, node: Node, bound: Bound) -> Type:
        """Return the type of a part."""
        found = DYN
        match node:
            case Literal(token=token):
                is_bool = token.text in {"true", "false"}
                found = BOOL if is_bool else _LITERALS.get(token.kind, types.NULL)
            case Name():
                found = self._name(node, bound)
            case Select(target=target, name=name):
                found = self._field(node, self.type(target, bound), name.text)
                found = types.optional(found) if node.is_optional else found
            case Index():
                found = self._index(node, bound)
            case Call():
                found = self._call(node, bound)
            case Binary():
                found = self._binary(node, bound)
            case _:
                found = self._composed(node, [self.type(each, bound) for each in children(node)])
        return found

    def refuse(self, reason: str, node: Node) -> NoReturn:
        """Raise CelError at the start of a part."""
        raise CelError(reason, expression=self._expression, offset=node.start)

    def _composed(self, node: Node, parts: Sequence[Type]) -> Type:
        found = DYN
        match node:
            case Logic(operator=operator, operands=operands):
                found = BOOL
                for operand, part in zip(operands, parts, strict=True):
                    self._expect(part, BOOL, f"as operand of {operator}", operand)
            case Unary(operator=operator):
                found = parts[0]
                if operator.text == "!":
                    self._expect(found, BOOL, "after !", node)
                elif found.is_known and not found.is_number:
                    self.refuse(f"found {found.shown()} after -, expected a number", node)
            case Ternary(condition=condition):
                self._expect(parts[0], BOOL, "before ?", condition)
                found = parts[1] if parts[1] == parts[2] else DYN
            case ListLiteral():
                found = Type("list", parts[0] if len(set(parts)) == 1 else DYN)
            case MapLiteral():
                found = Type("map", DYN)
        return found

    def _name(self, node: Name, bound: Bound) -> Type:
        text = node.token.text
        if not node.is_absolute and text in bound:
            return bound[text]
        if text == "device":
            return DEVICE
        if text not in _NAMESPACES:
            self.refuse(f"found {text}, expected device", node)
        return DYN

    def _field(self, node: Node, of: Type, name: str) -> Type:
        found = types.field(of, name)
        if found is None:
            inner = of.of if of.name == "optional" and of.of else of
            if inner == DEVICE:
                expected = ", ".join(types.DEVICE_FIELDS)
                self.refuse(f"found device.{name}, expected one of its fields: {expected}", node)
            self.refuse(f"found {inner.shown()} with .{name}, expected an object", node)
        return found

    def _index(self, node: Index, bound: Bound) -> Type:
        of, key = self.type(node.target, bound), self.type(node.key, bound)
        inner = of.of if of.name == "optional" and of.of else of
        found = DYN
        if inner == DEVICE:
            self.refuse("found device[...], expected a field: device.driver", node)
        elif inner.name == "list":
            self._expect(key, INT, "in []", node.key)
            found = inner.of or DYN
        elif inner.name in {"attributes", "our attributes", "map"}:
            if inner != Type("map", DYN):
                self._expect(key, STRING, "in []", node.key)
            value = node.key.token.value if isinstance(node.key, Literal) else None
            named = types.field(inner, value) if isinstance(value, str) else None
            found = named or types.any_entry(inner)
        elif inner.is_known:
            self.refuse(f"found {inner.shown()} with [], expected an object or a list", node)
        return types.optional(found) if node.is_optional or inner is not of else found

    def _call(self, node: Call, bound: Bound) -> Type:
        if macros.is_has(node):
            argument = node.arguments[0]
            if not isinstance(argument, Select):
                self.refuse("found has() without a field, expected has(a.b)", node)
            self.type(argument, bound)
            return BOOL
        if macros.is_bind(node):
            value = self.type(node.arguments[1], bound)
            return self.type(node.arguments[2], {**bound, self._text(node.arguments[0]): value})
        if macros.bound(node):
            return self._comprehension(node, bound)
        arguments = [self.type(argument, bound) for argument in node.arguments]
        target = node.target
        if target is None:
            return self._function(node, arguments)
        if isinstance(target, Name) and target.token.text in _NAMESPACES - bound.keys():
            is_optional = (target.token.text, node.name.text) == ("optional", "of") and arguments
            return types.optional(arguments[0]) if is_optional else DYN
        return self._method(node, self.type(target, bound), arguments)

    def _comprehension(self, node: Call, bound: Bound) -> Type:
        """Return the type of a macro such as `exists`.

        A name that it binds may hold any value, except for the only one over a list: its items.
        """
        assert node.target is not None
        over = self.type(node.target, bound)
        name, count = node.name.text, macros.bound(node)
        if name in macros.OVER_MAPS and (over.name in _SCALARS or over == DEVICE):
            self.refuse(f"found {over.shown()} with .{name}, expected a list or an object", node)
        values = dict.fromkeys(map(self._text, node.arguments[:count]), DYN)
        if over.name == "list" and count == 1:
            values = dict.fromkeys(values, over.of or DYN)
        parts = [self.type(each, {**bound, **values}) for each in node.arguments[count:]]
        if name in {"all", "exists", "exists_one", "existsOne"}:
            self._expect(parts[0], BOOL, f"in {name}()", node.arguments[count])
            return BOOL
        return over if name == "filter" and over.name == "list" else DYN

    def _function(self, node: Call, arguments: Sequence[Type]) -> Type:
        name = node.name.text
        if name not in types.FUNCTIONS:
            self.refuse(f"found {name}(), expected a function of Kubernetes' CEL", node)
        if name in types.READ_TEXT and arguments:
            self._expect(arguments[0], STRING, f"in {name}()", node.arguments[0])
        return types.FUNCTIONS[name]

    def _method(self, node: Call, of: Type, arguments: Sequence[Type]) -> Type:
        name = node.name.text
        if of.name == "optional":
            return types.of_optional(of, name)
        if of.name in {"Quantity", "Semver"}:
            return self._of_amount(node, of, arguments)
        wrong = of.name in _SCALARS and name in _OF_QUANTITIES
        wrong |= of.name in _SCALARS - {"string"} and name in {*types.STRING_METHODS, "size"}
        if wrong or of == DEVICE:
            self.refuse(f"found {of.shown()} with .{name}(), which it does not have", node)
        if name == "size":
            return INT
        return types.STRING_METHODS.get(name, DYN) if of.name == "string" else DYN

    def _of_amount(self, node: Call, of: Type, arguments: Sequence[Type]) -> Type:
        """Return the type of a method call on a quantity or a version."""
        methods = types.QUANTITY_METHODS if of == QUANTITY else types.VERSION_METHODS
        name = node.name.text
        if name not in methods:
            expected = ", ".join(methods)
            self.refuse(f"found {of.shown()} with .{name}(), expected one of {expected}", node)
        wanted = 1 if name in {*types.COMPARISONS, "add", "sub"} else 0
        if len(arguments) != wanted:
            self.refuse(f"found {len(arguments)} arguments of {name}(), expected {wanted}", node)
        may_be_int = name in {"add", "sub"} and arguments[0].name == "int"
        if wanted and not may_be_int:
            self._expect(arguments[0], of, f"in {name}()", node.arguments[0])
        return methods[name]

    def _binary(self, node: Binary, bound: Bound) -> Type:
        left, right = self.type(node.left, bound), self.type(node.right, bound)
        operator = node.operator.text
        if operator == "in":
            self._contained(node, left, right)
            return BOOL
        if operator in {"==", "!="}:
            if not types.may_be_equal(left, right):
                self._refuse_pair(node, left, right)
            return BOOL
        if operator in _ORDERS:
            if not types.may_be_ordered(left, right):
                self._refuse_pair(node, left, right)
            return BOOL
        return self._calculated(node, left, right)

    def _contained(self, node: Binary, left: Type, right: Type) -> None:
        if right.name in _SCALARS or right in {DEVICE, types.NULL}:
            self.refuse(f"found {right.shown()} after in, expected a list or an object", node.right)
        if right.name == "list" and not types.may_be_equal(left, right.of or DYN):
            item = (right.of or DYN).shown()
            self.refuse(f"found {left.shown()} in a list, each item of which is {item}", node)

    def _calculated(self, node: Binary, left: Type, right: Type) -> Type:
        for side, found in ((node.left, left), (node.right, right)):
            if found.name in {"Quantity", "Semver", "bool", "optional"} or found == DEVICE:
                self.refuse(f"found {found.shown()} as operand of {node.operator.text}", side)
        if {left.name, right.name} & {"string"} and left.is_number | right.is_number:
            self._refuse_pair(node, left, right)
        return left if left.name == right.name and not left.is_attribute else DYN

    def _expect(self, found: Type, expected: Type, where: str, node: Node) -> None:
        if found.is_known and found.name != expected.name:
            self.refuse(f"found {found.shown()} {where}, expected {expected.shown()}", node)

    def _refuse_pair(self, node: Binary, left: Type, right: Type) -> NoReturn:
        operator = node.operator.text
        hint = ""
        if QUANTITY in {left, right}:
            hint = ", expected compareTo(), isGreaterThan() or isLessThan() of a quantity()"
        elif "Semver" in {left.name, right.name}:
            hint = ", expected compareTo(), isGreaterThan() or isLessThan() of a semver()"
        elif "optional" in {left.name, right.name}:
            hint = ", expected orValue()"
        self.refuse(f"found {left.shown()} {operator} {right.shown()}{hint}", node)

    def _text(self, node: Node) -> str:
        return self._expression[node.start : node.end]
