"""Tests of the runner without a gateway: `python3 -m unittest discover -s tests` in the folder of the runner."""

import io
import os
import socket
import sys
import tempfile
import threading
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

from apisix.runner import protocol, server  # noqa: E402
from apisix.runner.flat import Invalid, Table, encode  # noqa: E402
from apisix.runner.plugin.core import PluginBase  # noqa: E402


class Broken(PluginBase):
    def name(self):
        return "broken"

    def filter(self, conf, request, response):
        raise ValueError("broken")


class Gateway:
    """The gateway's side of one connection."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.stream = self.socket.makefile("rb")

    def ask(self, kind, fields):
        self.socket.sendall(protocol.frame(kind, fields))
        kind, payload = protocol.receive(self.stream)
        return kind, Table.root(payload)

    def close(self):
        self.stream.close()
        self.socket.close()


class Flat(unittest.TestCase):
    def test_fields_are_read_as_they_were_written(self):
        data = encode([
            ("word", 7), None, ("byte", 2), ("text", b"ab"), ("table", [("short", 503), ("bytes", b"\0\xff")]),
            protocol.entries([("a", "1"), ("flag", None)]),
        ])
        table = Table.root(data)
        self.assertEqual(
            (table.number(0, "word"), table.number(2, "byte"), table.bytes(3)), (7, 2, b"ab"))
        inner = table.table(4)
        self.assertEqual((inner.number(0, "short"), inner.bytes(1)), (503, b"\0\xff"))
        self.assertEqual(protocol.pairs(table.tables(5)), [("a", "1"), ("flag", None)])
        self.assertIsNone(table.bytes(40))

    def test_cut_data_are_invalid(self):
        data = encode([("text", b"text"), ("word", 1)])
        for length in range(len(data) - 1):
            with self.assertRaises(Invalid):
                table = Table.root(data[:length])
                table.number(1, "word")
                table.bytes(0)


class Runner(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "runner.sock")
        with mock.patch.object(sys, "stderr", io.StringIO()):
            server.load(os.path.join(os.path.dirname(HERE), "plugins"))
        cls.server = server.Server(cls.path)
        threading.Thread(target=cls.server.serve, daemon=True).start()

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.gateway = Gateway(self.path)
        self.addCleanup(self.gateway.close)

    def token(self, *plugins):
        kind, table = self.gateway.ask(protocol.PREPARE_CONF, [protocol.entries(plugins), ("text", repr(plugins).encode())])
        self.assertEqual(kind, protocol.PREPARE_CONF)
        return table.number(0, "word")

    def call(self, token, args=()):
        fields = [("word", 9), ("bytes", bytes([127, 0, 0, 1])), ("byte", 2), ("text", b"/old"),
                  protocol.entries(list(args)), protocol.entries([("host", "h")]), ("word", token)]
        return self.gateway.ask(protocol.HTTP_REQ_CALL, fields)

    def test_a_plugin_responds(self):
        token = self.token(("say", '{"body": "hello"}'), ("rewrite", "{}"))
        self.assertEqual(token, self.token(("say", '{"body": "hello"}'), ("rewrite", "{}")))
        kind, table = self.call(token)
        self.assertEqual((kind, table.number(0, "word"), table.number(1, "byte")), (2, 9, protocol.STOP))
        stop = table.table(2)
        self.assertEqual((stop.number(0, "short"), stop.bytes(2)), (200, b"hello"))
        self.assertEqual(protocol.pairs(stop.tables(1)), [("X-Runner", "Python")])

    def test_a_plugin_changes_the_request(self):
        token = self.token(("rewrite", '{"path": "/new", "args": {"a": "1"}, "body": "b-"}'))
        kind, table = self.call(token)
        self.assertEqual((kind, table.number(0, "byte")), (protocol.EXTRA_INFO, protocol.REQUEST_BODY))
        kind, table = self.gateway.ask(protocol.EXTRA_INFO, [("bytes", b"old")])
        self.assertEqual((kind, table.number(0, "byte")), (protocol.EXTRA_INFO, protocol.VARIABLE))
        self.assertEqual(table.table(1).bytes(0), b"route_id")
        kind, table = self.gateway.ask(protocol.EXTRA_INFO, [("bytes", b"1")])
        self.assertEqual((kind, table.number(1, "byte")), (2, protocol.REWRITE))
        rewrite = table.table(2)
        self.assertEqual((rewrite.bytes(0), rewrite.bytes(4)), (b"/new", b"b-old"))
        self.assertEqual(protocol.pairs(rewrite.tables(1)), [("x-client", "127.0.0.1"), ("x-route", "1")])
        self.assertEqual(protocol.pairs(rewrite.tables(2)), [("a", "1")])
        self.assertEqual(protocol.pairs(rewrite.tables(3)), [("X-Runner", "Python")])

    def test_a_plugin_changes_a_response(self):
        token = self.token(("redact", '{"words": ["secret"]}'))
        fields = [("word", 4), ("short", 200), protocol.entries([("content-type", "text/plain")]), ("word", token)]
        for body, expected in ((b"a secret", b"a ******"), (b"nothing", None)):
            kind, table = self.gateway.ask(protocol.HTTP_RESP_CALL, fields)
            self.assertEqual((kind, table.number(0, "byte")), (protocol.EXTRA_INFO, protocol.RESPONSE_BODY))
            kind, table = self.gateway.ask(protocol.EXTRA_INFO, [("bytes", body)])
            self.assertEqual((kind, table.number(1, "short"), table.bytes(3)), (4, 0, expected))
            fields_set = [("content-type", "text/plain"), ("X-Redacted", "1")] if expected else []
            self.assertEqual(protocol.pairs(table.tables(2)), fields_set)

    def test_errors_have_codes(self):
        with mock.patch.object(sys, "stderr", io.StringIO()):
            kind, table = self.call(77_777)
            self.assertEqual((kind, table.number(0, "byte")), (protocol.ERROR, protocol.CONF_TOKEN_NOT_FOUND))
            kind, table = self.gateway.ask(
                protocol.PREPARE_CONF, [protocol.entries([("none", "{}")]), ("text", b"k")])
            self.assertEqual((kind, table.number(0, "byte")), (protocol.ERROR, protocol.BAD_REQUEST))
            kind, table = self.call(self.token(("broken", "{}")))
            self.assertEqual((kind, table.number(0, "byte")), (protocol.ERROR, protocol.SERVICE_UNAVAILABLE))
            kind, table = self.gateway.ask(9, [])
            self.assertEqual((kind, table.number(0, "byte")), (protocol.ERROR, protocol.BAD_REQUEST))
            self.gateway.socket.sendall(b"\2\0\0\4\xff\xff\xff\xff")
            kind, payload = protocol.receive(self.gateway.stream)
            self.assertEqual((kind, Table.root(payload).number(0, "byte")), (protocol.ERROR, protocol.BAD_REQUEST))

    def test_the_socket_is_of_this_user_alone(self):
        self.assertEqual(os.stat(self.path).st_mode & 0o777, 0o600)


if __name__ == "__main__":
    unittest.main()
