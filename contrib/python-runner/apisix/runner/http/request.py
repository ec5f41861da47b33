"""The request that a plugin gets."""

from ipaddress import ip_address

from ..protocol import HTTP_REQ_CALL, METHODS, REQUEST_BODY, REWRITE, VARIABLE, data_of, entries, pairs, text


class Request:
    """A request. Changes are sent to the gateway after the last plugin."""

    def __init__(self, table, ask):
        self._ask = ask
        self._id = table.number(0, "word")
        address = table.bytes(1)
        self._address = str(ip_address(address)) if address else ""
        method = table.number(2, "byte")
        self._method = METHODS[method] if method < len(METHODS) else "GET"
        self._uri = text(table.bytes(3)) or "/"
        # Of several values of a name the last one is shown.
        self._args = {name: "" if value is None else value for name, value in pairs(table.tables(4))}
        self._headers = dict(pairs(table.tables(5)))
        self._token = table.number(6, "word")
        self._new_uri, self._new_body = None, None
        self._new_args, self._new_headers, self._resp_headers = {}, {}, []

    def get_id(self):
        """Returns the number of the request."""
        return self._id

    def get_conf_token(self):
        """Returns the token of the configuration."""
        return self._token

    def get_method(self):
        """Returns the method."""
        return self._method

    def get_remote_addr(self):
        """Returns the address of the client; empty if it has none."""
        return self._address

    def get_uri(self):
        """Returns the path, without arguments."""
        return self._new_uri or self._uri

    def set_uri(self, uri):
        """Sets the path for the node. It is not encoded."""
        self._new_uri = uri
        return bool(uri)

    def get_headers(self):
        """Returns the fields; names are in lower case."""
        return dict(self._headers)

    def set_headers(self, headers):
        """Sets several fields."""
        for name, value in headers.items():
            self.set_header(name, value)
        return bool(headers)

    def get_header(self, name):
        """Returns a field; None if it is missing."""
        return self._headers.get(name.lower())

    def set_header(self, name, value):
        """Sets a field for the node; `host` sets the host."""
        self._headers[name.lower()] = value
        self._new_headers[name.lower()] = value
        return True

    def remove_header(self, name):
        """Removes a field."""
        self._headers.pop(name.lower(), None)
        self._new_headers[name.lower()] = None

    def get_args(self):
        """Returns the arguments, decoded; empty texts for those without a value."""
        return dict(self._args)

    def set_args(self, args):
        """Sets several arguments."""
        for name, value in args.items():
            self.set_arg(name, value)
        return bool(args)

    def get_arg(self, name):
        """Returns an argument; None if it is missing."""
        return self._args.get(name)

    def set_arg(self, name, value):
        """Sets an argument for the node."""
        self._args[name] = value
        self._new_args[name] = value
        return True

    def remove_arg(self, name):
        """Removes an argument."""
        self._args.pop(name, None)
        self._new_args[name] = None

    def get_body(self):
        """Returns the body as text. The gateway reads it for this call."""
        return text(self.get_body_bytes())

    def get_body_bytes(self):
        """Returns the body."""
        return self._new_body if self._new_body is not None else self._ask(REQUEST_BODY) or b""

    def set_body(self, body):
        """Sets the body for the node, text or bytes. An empty one cannot be set."""
        self._new_body = data_of(body)
        return bool(body)

    def get_var(self, name):
        """Returns a variable of the gateway, such as `remote_addr`; None if it has no value."""
        return text(self._ask(VARIABLE, name))

    def set_resp_header(self, name, value):
        """Sets a field of the response to the client."""
        self._resp_headers.append((name, value))
        return True

    def changed(self):
        """Returns True if something is to be sent to the gateway."""
        return bool(
            self._new_uri or self._new_headers or self._new_args or self._resp_headers or self._new_body
        )

    def reply(self):
        """Returns the type of the frame and the fields of its table."""
        if not self.changed():
            return HTTP_REQ_CALL, [("word", self._id)]
        rewrite = [
            ("text", data_of(self._new_uri)) if self._new_uri else None,
            entries(self._new_headers.items()),
            entries(self._new_args.items()),
            entries(self._resp_headers),
            ("bytes", self._new_body) if self._new_body else None,
        ]
        return HTTP_REQ_CALL, [("word", self._id), ("byte", REWRITE), ("table", rewrite)]
