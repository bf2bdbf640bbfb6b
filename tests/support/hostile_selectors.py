"""Selectors that ask for much memory or time, though each is short enough for the API server."""

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from tests.support.selecting import A, C

_NAMES: Final = "abcdefghijklmnopqrstuvwxyz"


def repeated(first: str, times: int, step: str = "$+$", last: str = "size($)>0") -> str:
    """Return an expression that applies a step to a value, again and again to the result.

    Args:
        step: The next value; the one before it is $.
        last: The result, of the last value.
    """
    names = _NAMES[: times + 1]
    steps = [step.replace("$", old) for old in names[:-1]]
    binds = [
        f"cel.bind({name},{value}," for name, value in zip(names, [first, *steps], strict=True)
    ]
    return f"{''.join(binds)}{last.replace('$', names[-1])}{')' * len(names)}"


def list_of(count: int) -> str:
    return f"[{','.join(map(str, range(count)))}]"


LISTS: Final = repeated("[1,2,3,4]", 23)
"""Thirty million numbers, which is 2 GiB."""
STRINGS: Final = repeated(f'"{"x" * 64}"', 21)
"""128 MiB of text, and as much in the values before it."""
TIME: Final = f"{list_of(100)}.all(a,{list_of(95)}.all(b,'{'a' * 5_000}'.replace('a','b')!=''))"
"""Some seconds: 9,500 times five thousand letters."""

_LEAVES: Final[Mapping[str, Sequence[str]]] = {
    "bool": ("true", f"{A}.model=='A100'", "1<2", "[1]==[1]"),
    "text": ("''", "'aé,.'", f"'{'a' * 40}'", f"{A}.uuid", "device.driver"),
    "texts": (
        "['a','']",
        f"['{'b' * 200}']",
        f"[{A}.model,{A}.uuid]",
        "[" + "''," * 90 + "]",
    ),
    "lists": ("[['a'],[]]", f"[[{A}.uuid]]"),
    "number": ("1", "-9223372036854775807", f"{A}.node_total_gpus", f"{C}.vram.asInteger()"),
    "amount": (f"{C}.vram", "quantity('0.000000001Ei')", f"quantity('{'9' * 40}')"),
    "pattern": ("'a'", "'(a|aa)+$'", "'(?i)[^é]*b'", r"'(?i)[b-\\x{10fffe}]{40}'", r"'\\pN'"),
}
_STEPS: Final[Mapping[str, Sequence[str]]] = {
    "bool": (
        "({bool}&&{bool})",
        "({bool}||!{bool})",
        "{text}=={text}",
        "{texts}=={texts}",
        "{lists}=={lists}",
        "{text} in {texts}",
        "{texts} in {lists}",
        "{text}.contains({text})",
        "{text}.matches({pattern})",
        "{texts}.all({@text},{bool})",
        "{lists}.exists({@texts},{bool})",
        "device.attributes.all({@text},{bool})",
        "cel.bind({@texts},{texts},{bool})",
        "cel.bind({@text},{text},{bool})",
        "cel.bind({@lists},{lists},{bool})",
        "{number}>{number}",
        "{amount}.isGreaterThan({amount})",
        "isSemver({text},true)",
    ),
    "text": (
        "({text}+{text})",
        "{text}.replace({text},{text})",
        "{texts}.join({text})",
        "{text}.upperAscii()",
        "string({number})",
        "'%s%.1000f'.format([{texts},1.0])",
        "({bool}?{text}:{text})",
        "cel.bind({@text},{text},{text})",
        "optional.of({text}).orValue('')",
        "string(bytes({text}))",
    ),
    "texts": (
        "({texts}+{texts})",
        "{text}.split('')",
        "{text}.split({text})",
        "{texts}.map({@text},{text})",
        "{texts}.filter({@text},{bool})",
        "cel.bind({@texts},{texts},{texts})",
    ),
    "lists": (
        "({lists}+{lists})",
        "[{texts},{texts}]",
        "{texts}.map({@text},{texts})",
        "{lists}.map({@texts},{texts})",
        "cel.bind({@lists},{lists},{lists})",
    ),
    "number": ("size({texts})", "sign({amount})", "({number}+{number})", "{'a':{number}}['a']"),
    "amount": ("quantity({text})", "{amount}.add({amount})", "{amount}.sub({number})"),
    "pattern": ("{pattern}",),
}
_PART: Final = re.compile(r"\{(@?)(bool|texts?|lists|number|amount|pattern)\}")


def _written(random: Random, kind: str, depth: int, bound: Sequence[tuple[str, str]] = ()) -> str:
    """Return an expression of a kind, which may use the bound names, each with its kind."""
    own = list(bound)

    def part(found: re.Match[str]) -> str:
        if not found[1]:
            return _written(random, found[2], depth - 1, own)
        own.append((f"v{len(own)}", found[2]))
        return own[-1][0]

    names = [name for name, of in bound if of == kind]
    return _PART.sub(part, random.choice([*(_STEPS if depth > 0 else _LEAVES)[kind], *names]))


def _wide(random: Random) -> str:
    """Return a long expression of many parts, none of which costs much."""
    part = random.choice(["true", "!true", "((true))", f'{A}.model=="x"', "[1]==[1]", "1<2"])
    return random.choice(["&&", "||", ")||("]).join([part] * random.randint(20, 500))


def _odd(random: Random) -> str:
    """Return a long text that is hardly an expression."""
    texts = ["(", ")", "[", "]", "{", "!", "-", "a", ".", "?", ":", "'", '"', "\\", "1", "//", "\n"]
    texts += ["r'''", '"""', "&&", "in", "`", "b'", "cel.bind(", "é", "0x", "1e", "\ud800"]
    some = random.sample(texts, random.randint(1, 4))
    return "".join(random.choices(some, k=random.randint(10, 4_000)))


def _steps(random: Random) -> str:
    """Return an expression whose steps multiply."""
    step = random.choice(
        ["$+$", "[$,$][0]+$", "$.replace('a','aaaa')", "[$,$].join($)", "$.split('').join($)"]
    )
    return repeated("'aaaa'", random.randint(1, 25), step)


def hostile(seed: int) -> str:
    """Return a hostile selector, the same for the same seed."""
    random = Random(seed)
    match seed % 8:
        case 0:
            return f"({_wide(random)})"
        case 1:
            return _odd(random)
        case 2:
            return _steps(random)
    return _written(random, "bool", random.randint(2, 6))
