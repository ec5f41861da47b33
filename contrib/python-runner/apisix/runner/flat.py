"""FlatBuffers, as far as the protocol of runners needs them.

A table is written as a list of fields, each a pair of its kind and its value; `None` leaves a field out. Kinds are
`byte`, `short`, `word`, `text` and `bytes`, `table` and `tables`.
"""

import struct

_WIDTHS = {"byte": 1, "short": 2}
_FORMATS = {"byte": "<B", "short": "<H", "word": "<I"}


class Invalid(Exception):
    """The bytes are no table of the protocol."""


def encode(fields):
    """Returns the bytes of a table."""
    out = bytearray(4)
    struct.pack_into("<I", out, 0, _put_table(out, fields))
    return bytes(out)


def _align(out):
    out.extend(bytes(-len(out) % 4))


def _put_table(out, fields):
    length = 4 + 2 * len(fields)
    out.extend(bytes(-(len(out) + length) % 4))
    slots = len(out)
    out.extend(bytes(length))
    table = len(out)
    out.extend(struct.pack("<i", length))
    places = []
    # The widest first: then all are aligned.
    for width in (4, 2, 1):
        for number, field in enumerate(fields):
            if field is None or _WIDTHS.get(field[0], 4) != width:
                continue
            kind, value = field
            struct.pack_into("<H", out, slots + 4 + 2 * number, len(out) - table)
            if kind in _FORMATS:
                out.extend(struct.pack(_FORMATS[kind], value))
            else:
                places.append((len(out), kind, value))
                out.extend(bytes(4))
    struct.pack_into("<HH", out, slots, length, len(out) - table)
    for place, kind, value in places:
        if kind == "table":
            target = _put_table(out, value)
        else:
            _align(out)
            target = len(out)
            out.extend(struct.pack("<I", len(value)))
            if kind == "tables":
                first = len(out)
                out.extend(bytes(4 * len(value)))
                for number, item in enumerate(value):
                    at = first + 4 * number
                    struct.pack_into("<I", out, at, _put_table(out, item) - at)
            else:
                out.extend(value)
                if kind == "text":
                    out.append(0)
        struct.pack_into("<I", out, place, target - place)
    return table


class Table:
    """A table that is read."""

    def __init__(self, data, at):
        self._data, self._at = data, at
        slots = at - _unpack("<i", data, at)
        if slots < 0:
            raise Invalid("a table has no list of fields")
        length, self._size = _unpack("<H", data, slots), _unpack("<H", data, slots + 2)
        self._slots = data[slots + 4:slots + length]

    @staticmethod
    def root(data):
        """Returns the table that the data begin with."""
        return Table(data, _follow(data, 0))

    def _field(self, number):
        slot = self._slots[2 * number:2 * number + 2]
        offset = int.from_bytes(slot, "little") if len(slot) == 2 else 0
        if offset >= self._size:
            raise Invalid("a field is outside of its table")
        return self._at + offset if offset else None

    def number(self, number, kind):
        """Returns a number; 0 if it is absent."""
        at = self._field(number)
        return 0 if at is None else _unpack(_FORMATS[kind], self._data, at)

    def bytes(self, number):
        """Returns a text or a list of bytes; None if it is absent."""
        at = self._field(number)
        if at is None:
            return None
        at = _follow(self._data, at)
        length = _unpack("<I", self._data, at)
        found = self._data[at + 4:at + 4 + length]
        if len(found) != length:
            raise Invalid("a text is cut")
        return bytes(found)

    def table(self, number):
        """Returns a table; None if it is absent."""
        at = self._field(number)
        return None if at is None else Table(self._data, _follow(self._data, at))

    def tables(self, number):
        """Returns a list of tables; empty if it is absent."""
        at = self._field(number)
        if at is None:
            return []
        at = _follow(self._data, at)
        count = _unpack("<I", self._data, at)
        if count > len(self._data):
            raise Invalid("a list is cut")
        return [Table(self._data, _follow(self._data, at + 4 + 4 * item)) for item in range(count)]


def _unpack(form, data, at):
    try:
        return struct.unpack_from(form, data, at)[0]
    except struct.error as error:
        raise Invalid("a number is outside of the data") from error


def _follow(data, at):
    return at + _unpack("<I", data, at)
