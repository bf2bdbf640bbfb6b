"""The reader of HTTP answers: its forms, however they are cut, and what it refuses."""

import http.client
import io
import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tensorfusion_dra.cluster.http_answer import Answer, ConnectionEndedError
from tensorfusion_dra.cluster.http_head import MalformedAnswerError
from tensorfusion_dra.cluster.limits import Limits, TooLargeError
from tests.support.raw_server import chunk

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
DOCUMENT = b'{"kind": "ResourceClaim"}'
LENGTH = OK + b"Content-Length: 25\r\n\r\n" + DOCUMENT

READABLE = {
    "length": (LENGTH, 200, DOCUMENT, True),
    "empty": (OK + b"Content-Length: 0\r\n\r\n", 200, b"", True),
    "chunks": (CHUNKED + chunk(b'{"a":') + chunk(b" 1}") + chunk(b""), 200, b'{"a": 1}', True),
    "upper-case size": (CHUNKED + b"A\r\n0123456789\r\n0\r\n\r\n", 200, b"0123456789", True),
    "extension": (CHUNKED + b"2 ;a=b\r\n{}\r\n0;c\r\n\r\n", 200, b"{}", True),
    "trailers": (CHUNKED + chunk(b"{}") + b"0\r\nA: b\r\nC: d\r\n\r\n", 200, b"{}", True),
    "error": (
        b"HTTP/1.1 429 Too Many Requests\r\nRETRY-AFTER:7 \r\ncontent-length: 2\r\n\r\n{}",
        *(429, b"{}", True),
    ),
    "no reason": (b"HTTP/1.1 404\r\nContent-Length: 2\r\n\r\n{}", 404, b"{}", True),
    "no content": (b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n", 204, b"", True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\nA: b\r\n\r\n", 304, b"", True),
    "interim": (b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + LENGTH, 200, DOCUMENT, True),
    "closing": (
        OK + b"Connection: Close\r\nContent-Length: 2\r\n\r\n{}",
        *(200, b"{}", False),
    ),
    "until closed": (OK + b"A: b\r\n\r\n" + DOCUMENT, 200, DOCUMENT, False),
    "old": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}", 200, b"{}", False),
    "surplus": (LENGTH + b"HTTP/1.1 200 OK\r\n", 200, DOCUMENT, False),
}
ENDING = {name: READABLE[name] for name in READABLE if name not in {"until closed", "surplus"}}


@dataclass
class Wire:
    """A socket from which given pieces arrive, one at a time, and then the end."""

    pieces: Iterator[bytes]
    received: int = 0

    def settimeout(self, value: float) -> None:
        assert value > 0

    def recv(self, most: int) -> bytes:
        piece = next(self.pieces, b"")
        assert len(piece) <= most
        self.received += len(piece)
        return piece

    def shutdown(self, how: int) -> None:
        """Do nothing: the pieces are given."""


def read(*pieces: bytes, most_bytes: int = 10**6) -> tuple[int, bytes, bool]:
    """Return status and body of an answer, and whether its connection may be used again."""
    reusable: list[bool] = []
    wire = Wire(iter(pieces))
    answer = Answer(wire, Limits(seconds=60, most_bytes=most_bytes), reusable.append)
    body = answer.body()
    answer.close()
    (is_reusable,) = reusable
    return answer.status, body, is_reusable


def cuts(text: bytes, seed: int) -> list[bytes]:
    """Return the text in pieces of random sizes."""
    chosen = random.Random(seed)
    places = sorted(chosen.sample(range(1, len(text)), min(len(text) - 1, chosen.randint(1, 12))))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize(
    ("text", "status", "body", "is_reusable"), READABLE.values(), ids=READABLE.keys()
)
def test_answer_is_the_same_however_it_is_cut(
    text: bytes, status: int, body: bytes, is_reusable: bool
) -> None:
    expected = (status, body, is_reusable)

    assert read(text) == expected
    # Surplus bytes that arrive later are seen before the next request, as a dropped connection.
    if text != READABLE["surplus"][0]:
        assert read(*(text[i : i + 1] for i in range(len(text)))) == expected
        for place in range(1, len(text)):
            assert read(text[:place], text[place:]) == expected
        for seed in range(200):
            assert read(*cuts(text, seed)) == expected


@pytest.mark.parametrize("text", [value[0] for value in ENDING.values()], ids=ENDING.keys())
def test_answer_that_is_cut_off_anywhere_is_never_taken_for_whole(text: bytes) -> None:
    for end in range(len(text)):
        with pytest.raises(ConnectionEndedError):
            read(text[:end])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b"<html></html>\r\n\r\n", "'<html></html>', expected an HTTP status line"),
        (b"HTTP/2 200\r\n\r\n", "status line"),
        (b"HTTP/1.1 20 OK\r\n\r\n", "status line"),
        (b"HTTP/1.1 200OK\r\n\r\n", "status line"),
        (b"HTTP/1.1 600 X\r\n\r\n", "status line"),
        (b"\r\n" + LENGTH, "status line"),
        (b"HTTP/1.1 200 OK\nContent-Length: 2\n\n{}\r\n\r\n", "status line"),
        (OK + b"no header\r\n\r\n", "'no header', expected an HTTP header"),
        (OK + b"A : b\r\n\r\n", "'A ', expected an HTTP header"),
        (OK + b": b\r\n\r\n", "expected an HTTP header"),
        (OK + b"A: b\0\r\n\r\n", "expected an HTTP header"),
        (OK + b"A: b\nContent-Length: 2\r\n\r\n", "expected an HTTP header"),
        (OK + b"A: b\r\n folded\r\n\r\n", "' folded', expected an HTTP header"),
        (OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n", "Transfer-Encoding 'gzip, chunked'"),
        (OK + b"Transfer-Encoding: chunked\r\n" * 2 + b"\r\n", "Transfer-Encoding"),
        (b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "in HTTP/1.0"),
        (OK + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", "one of them"),
        (OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", "'2, 3', expected one number"),
        (OK + b"Content-Length: -2\r\n\r\n{}", "'-2', expected one number"),
        (OK + b"Content-Length: +2\r\n\r\n{}", "expected one number"),
        (OK + b"Content-Length: 1_0\r\n\r\n{}", "expected one number"),
        (OK + b"Content-Length:\r\n\r\n{}", "expected one number"),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", "expected no change of protocol"),
        (CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n", "size of a chunk"),
        (CHUNKED + b"-2\r\n{}\r\n0\r\n\r\n", "size of a chunk"),
        (CHUNKED + b"\r\n{}\r\n0\r\n\r\n", "size of a chunk"),
        (CHUNKED + b"f" * 17 + b"\r\n", "size of a chunk"),
        (CHUNKED + b"2\r\n{}}\r\n0\r\n\r\n", "longer than its size"),
        (CHUNKED + b"2\r\n{}" + b"x" * 5000, "more than 4096 bytes"),
        (CHUNKED + b"2;" + b"x" * 5000, "more than 4096 bytes"),
        (CHUNKED + b"0\r\nA: " + b"x" * 5000, "more than 4096 bytes"),
    ],
)
def test_other_forms_are_refused(text: bytes, found: str) -> None:
    with pytest.raises(MalformedAnswerError, match=found):
        read(text)
    with pytest.raises(MalformedAnswerError, match=found):
        read(*(text[i : i + 1] for i in range(len(text))))


@pytest.mark.parametrize("piece", [b"HTTP/1.1 200 ", b"x", b"HTTP/1.1 200 OK\r\nA: b\r\n"])
def test_head_without_end_is_refused_after_64_kib(piece: bytes) -> None:
    wire = Wire(iter([piece, *[b"x" * 1024] * 1000]))

    with pytest.raises(MalformedAnswerError, match="more than 65536 bytes"):
        Answer(wire, Limits(seconds=60, most_bytes=10**6), lambda _: None)

    assert wire.received < 67 * 1024


@pytest.mark.parametrize(
    "text",
    [
        OK + b"Content-Length: 99999\r\n\r\n",
        CHUNKED + b"fffffffffff\r\n",
        OK + b"\r\n",
    ],
    ids=["length", "chunk", "until closed"],
)
def test_body_beyond_the_limit_is_refused(text: bytes) -> None:
    wire = Wire(iter([text, *[b" " * 1024] * 1000]))
    answer = Answer(wire, Limits(seconds=60, most_bytes=8192), lambda _: None)

    with pytest.raises(TooLargeError, match="more than 8192 bytes"):
        answer.body()

    assert wire.received <= 8192 + 1024


def test_interim_answers_without_end_are_refused() -> None:
    wire = Wire(iter([b"HTTP/1.1 100 Continue\r\n\r\n"] * 1000))

    with pytest.raises(TooLargeError):
        Answer(wire, Limits(seconds=60, most_bytes=8192), lambda _: None)


def test_body_cut_by_the_caller_is_not_followed_by_another_request() -> None:
    reusable: list[bool] = []
    text = OK + b"Content-Length: 3000\r\n\r\n" + b"x" * 3000
    answer = Answer(Wire(iter([text])), Limits(seconds=60, most_bytes=10**6), reusable.append)

    assert answer.body(cut_at=1000) == b"x" * 1000
    assert reusable == [False]


def test_repeated_headers_are_joined() -> None:
    text = OK + b"warning: a\r\nWarning:b\r\nContent-Length: 0\r\n\r\n"

    answer = Answer(Wire(iter([text])), Limits(seconds=60, most_bytes=10**6), lambda _: None)

    assert answer.headers["warning"] == "a, b"


class Recorded:
    """A socket for http.client that has received a text."""

    def __init__(self, text: bytes) -> None:
        self._text = text

    def makefile(self, _mode: str) -> io.BytesIO:
        return io.BytesIO(self._text)


def random_answer(chosen: random.Random) -> bytes:
    """Return a valid answer with a random status, headers and body in a random form."""
    status = chosen.choice([200, 201, 301, 404, 409, 429, 500, 503])
    body = chosen.randbytes(chosen.randint(0, 300))
    names = ["Audit-Id", "Cache-Control", "content-type", "X-Kubernetes-Pf-Flowschema-Uid"]
    lines = [f"{name}:{' ' * chosen.randint(0, 2)}{chosen.random()}" for name in names]
    if chosen.random() < 0.5:
        lines.append(f"Content-Length: {len(body)}")
        sent = body
    else:
        lines.append("Transfer-Encoding: chunked")
        sizes = [chosen.randint(1, 80) for _ in range(8)]
        ends = [min(sum(sizes[: i + 1]), len(body)) for i in range(8)] + [len(body)]
        parts = [body[a:b] for a, b in zip([0, *ends], ends, strict=False)]
        sent = b"".join(chunk(part) for part in parts if part) + b"0\r\n\r\n"
    chosen.shuffle(lines)
    return "\r\n".join([f"HTTP/1.1 {status} Reason", *lines, "", ""]).encode() + sent


def test_valid_answers_are_read_as_by_http_client() -> None:
    for seed in range(1000):
        text = random_answer(random.Random(seed))
        theirs = http.client.HTTPResponse(Recorded(text), method="GET")  # type: ignore[arg-type]
        theirs.begin()
        expected = {name.lower(): value for name, value in theirs.getheaders()}

        wire = Wire(iter(cuts(text, seed)))
        answer = Answer(wire, Limits(seconds=60, most_bytes=10**6), lambda _: None)

        assert answer.status == theirs.status, seed
        assert answer.headers == expected, seed
        assert answer.body() == theirs.read(), seed


def test_damaged_answers_are_read_or_refused() -> None:
    chosen = random.Random(1)
    refused = 0
    for _ in range(5000):
        text = bytearray(random_answer(chosen))
        for _ in range(chosen.randint(1, 4)):
            place = chosen.randrange(len(text))
            match chosen.randrange(4):
                case 0:
                    text[place] = chosen.randrange(256)
                case 1:
                    del text[place : place + chosen.randint(1, 9)]
                case 2:
                    text[place:place] = chosen.choice([b"\r\n", b"\0", b"0\r\n", b": ", b"\r"])
                case _:
                    text[place:place] = text[chosen.randrange(len(text)) :][:40]
        try:
            _, body, _ = read(*cuts(bytes(text), chosen.randrange(10**6)))
            assert len(body) <= len(text)
        except (MalformedAnswerError, ConnectionEndedError):
            refused += 1

    assert refused > 1000


def test_random_bytes_are_refused() -> None:
    for seed in range(500):
        text = random.Random(seed).randbytes(500)

        with pytest.raises((MalformedAnswerError, ConnectionEndedError)):
            read(*cuts(text, seed))
