"""The frames and messages between a gateway and a runner."""

import struct

from .flat import Table, encode

ERROR, PREPARE_CONF, HTTP_REQ_CALL, EXTRA_INFO, HTTP_RESP_CALL = range(5)
BAD_REQUEST, SERVICE_UNAVAILABLE, CONF_TOKEN_NOT_FOUND = range(3)
VARIABLE, REQUEST_BODY, RESPONSE_BODY = 1, 2, 3
STOP, REWRITE = 1, 2

PAYLOAD_MAX = (1 << 24) - 1

METHODS = (
    "GET", "HEAD", "POST", "PUT", "DELETE", "MKCOL", "COPY", "MOVE", "OPTIONS", "PROPFIND", "PROPPATCH", "LOCK",
    "UNLOCK", "PATCH", "TRACE",
)


class Closed(Exception):
    """The gateway has closed the connection."""


def text(data):
    """Returns bytes as text. Bytes that are no UTF-8 survive the way back."""
    return None if data is None else data.decode("utf-8", "surrogateescape")


def data_of(value):
    """Returns a text as bytes."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def receive(stream):
    """Returns the type and the payload of the next frame."""
    header = stream.read(4)
    if len(header) < 4:
        raise Closed
    length = int.from_bytes(header[1:], "big")
    payload = stream.read(length)
    if len(payload) < length:
        raise Closed
    return header[0], payload


def frame(kind, fields):
    """Returns a frame."""
    payload = encode(fields)
    if len(payload) > PAYLOAD_MAX:
        raise ValueError("the max length of data is %d but got %d" % (PAYLOAD_MAX, len(payload)))
    return struct.pack(">I", kind << 24 | len(payload)) + payload


def entries(pairs):
    """Returns the field for names and values; a value of None removes its name."""
    if not pairs:
        return None
    field = lambda value: None if value is None else ("text", data_of(value))
    return "tables", [[("text", data_of(name)), field(value)] for name, value in pairs]


def pairs(tables):
    """Returns names and values."""
    return [(text(table.bytes(0)), text(table.bytes(1))) for table in tables]


def root(payload):
    """Returns the table of a payload."""
    return Table.root(payload)
