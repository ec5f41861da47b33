"""The response that a plugin makes, and the response of a node that it changes."""

from ..protocol import (
    HTTP_REQ_CALL, HTTP_RESP_CALL, RESPONSE_BODY, STOP, VARIABLE, data_of, entries, pairs, text,
)


class _Fields:
    """Status, fields and body."""

    def __init__(self):
        self._status, self._headers, self._body = 0, {}, b""

    def get_headers(self):
        """Returns the fields."""
        return dict(self._headers)

    def get_header(self, name):
        """Returns a field; None if it is missing."""
        wanted = name.lower()
        return next((value for known, value in self._headers.items() if known.lower() == wanted), None)

    def set_header(self, name, value):
        """Sets a field."""
        if not name or value is None:
            return False
        self._headers = {known: old for known, old in self._headers.items() if known.lower() != name.lower()}
        self._headers[name] = value
        return True

    def set_headers(self, headers):
        """Sets the fields, and removes all others."""
        self._headers = dict(headers)
        return bool(headers)

    def set_body(self, body):
        """Sets the body, text or bytes. An empty one cannot be set."""
        self._body = data_of(body)
        return bool(body)

    def set_status_code(self, status_code):
        """Sets the status; returns False for an invalid one."""
        if not 200 <= status_code <= 599:
            return False
        self._status = status_code
        return True


class Response(_Fields):
    """The response of a plugin to the client. As soon as something is set, the request ends with it."""

    def get_status_code(self):
        """Returns the status."""
        return self._status or 200

    def get_body(self):
        """Returns the body as text."""
        return text(self._body)

    def changed(self):
        """Returns True if the request ends with this response."""
        return bool(self._status or self._headers or self._body)

    def reply(self, number):
        """Returns the type of the frame and the fields of its table."""
        stop = [
            ("short", self.get_status_code()),
            entries(self._headers.items()),
            ("bytes", self._body) if self._body else None,
        ]
        return HTTP_REQ_CALL, [("word", number), ("byte", STOP), ("table", stop)]


class UpstreamResponse(_Fields):
    """The response of a node, for `response_filter`."""

    def __init__(self, table, ask):
        super().__init__()
        self._ask = ask
        self._id = table.number(0, "word")
        self._node_status = table.number(1, "short")
        self._all = pairs(table.tables(2))
        self._headers = dict(self._all)
        self._has_new_headers = False

    def get_id(self):
        """Returns the number of the response."""
        return self._id

    def get_status_code(self):
        """Returns the status."""
        return self._status or self._node_status

    def set_header(self, name, value):
        """Sets a field; the other fields of the node stay."""
        self._has_new_headers = True
        self._all = [(known, old) for known, old in self._all if known.lower() != name.lower()]
        self._all.append((name, value))
        return super().set_header(name, value)

    def set_headers(self, headers):
        """Sets the fields, and removes all others."""
        self._has_new_headers, self._all = True, list(headers.items())
        return super().set_headers(headers)

    def remove_header(self, name):
        """Removes a field."""
        self.set_headers({known: old for known, old in self._all if known.lower() != name.lower()})

    def get_body(self):
        """Returns the body as text. The head waits for it."""
        return text(self.get_body_bytes())

    def get_body_bytes(self):
        """Returns the body."""
        return self._body or self._ask(RESPONSE_BODY) or b""

    def get_var(self, name):
        """Returns a variable of the gateway; None if it has no value."""
        return text(self._ask(VARIABLE, name))

    def reply(self):
        """Returns the type of the frame and the fields of its table."""
        return HTTP_RESP_CALL, [
            ("word", self._id),
            ("short", self._status),
            entries(self._all if self._has_new_headers else []),
            ("bytes", self._body) if self._body else None,
        ]
