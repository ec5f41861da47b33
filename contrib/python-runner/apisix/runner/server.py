"""The server: it loads plugins from a folder, and serves the gateway on a Unix socket, a thread for each connection."""

import argparse
import importlib.util
import os
import signal
import socket
import sys
import threading
import time
import traceback

from . import protocol
from .flat import Invalid
from .http.request import Request
from .http.response import Response, UpstreamResponse
from .plugin.core import PLUGINS

CONNECTIONS_MAX = 4096
"""Connections of all workers of the gateway; more wait in the queue of the socket."""


class Failure(Exception):
    """An error that the gateway gets as a code."""

    def __init__(self, code, reason):
        super().__init__(reason)
        self.code = code


def log(message):
    """Writes a line, which the gateway copies to its error log."""
    print(message, file=sys.stderr, flush=True)


def load(folder):
    """Imports each file of a folder."""
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".py") or name.startswith("_"):
            continue
        path = os.path.join(folder, name)
        module_name = "apisix_plugins_" + name[:-3]
        spec = importlib.util.spec_from_file_location(module_name, path)
        module = importlib.util.module_from_spec(spec)
        sys.modules[module_name] = module
        spec.loader.exec_module(module)
    log("plugins: " + (", ".join(sorted(PLUGINS)) or "none"))


class Configurations:
    """Parsed configurations, by the tokens that the gateway gets for them."""

    def __init__(self, lifetime):
        self._lifetime, self._lock = lifetime, threading.Lock()
        self._next, self._by_token, self._by_key = 1, {}, {}

    def put(self, key, plugins):
        """Returns the token of a configuration; the same key has the same token."""
        with self._lock:
            now = time.monotonic()
            for token in [token for token, known in self._by_token.items() if known[0] < now]:
                self._by_key.pop(self._by_token.pop(token)[1], None)
            token = self._by_key.get(key)
            if token is None:
                token, self._next = self._next, self._next % 0xFFFFFFFF + 1
            self._by_key[key] = token
            self._by_token[token] = (now + self._lifetime, key, plugins)
            return token

    def get(self, token):
        """Returns the plugins of a token, each with its configuration."""
        with self._lock:
            known = self._by_token.get(token)
        if known is None or known[0] < time.monotonic():
            raise Failure(protocol.CONF_TOKEN_NOT_FOUND, "the token %d is unknown" % token)
        return known[2]


class Connection:
    """A connection: one call after the other."""

    def __init__(self, server, peer):
        self._server, self._peer = server, peer
        self._stream = peer.makefile("rb")

    def run(self):
        try:
            while True:
                kind, payload = protocol.receive(self._stream)
                self._send(*self._handle(kind, payload))
        except (protocol.Closed, OSError):
            pass
        finally:
            self._stream.close()
            self._peer.close()

    def _send(self, kind, fields):
        self._peer.sendall(protocol.frame(kind, fields))

    def _handle(self, kind, payload):
        try:
            table = protocol.root(payload)
            if kind == protocol.PREPARE_CONF:
                return self._prepare(table)
            if kind == protocol.HTTP_REQ_CALL:
                return self._request(table)
            if kind == protocol.HTTP_RESP_CALL:
                return self._response(table)
            raise Failure(protocol.BAD_REQUEST, "the frame has the type %d" % kind)
        except (protocol.Closed, OSError):
            raise
        except Failure as failure:
            if failure.code != protocol.CONF_TOKEN_NOT_FOUND:
                log(str(failure))
            code = failure.code
        except Invalid as error:
            log("a message of the gateway is invalid: %s" % error)
            code = protocol.BAD_REQUEST
        except Exception:  # of a plugin
            log(traceback.format_exc())
            code = protocol.SERVICE_UNAVAILABLE
        return protocol.ERROR, [("byte", code)]

    def _ask(self, info, name=None):
        """Asks the gateway for a body or a variable."""
        about = [] if name is None else [("text", protocol.data_of(name))]
        self._send(protocol.EXTRA_INFO, [("byte", info), ("table", about)])
        kind, payload = protocol.receive(self._stream)
        if kind != protocol.EXTRA_INFO:
            raise protocol.Closed
        return protocol.root(payload).bytes(0)

    def _prepare(self, table):
        plugins = []
        for name, value in protocol.pairs(table.tables(0)):
            known = PLUGINS.get(name)
            if known is None:
                # Without it the route would be more open than its configuration says.
                raise Failure(protocol.BAD_REQUEST, "there is no plugin %r" % name)
            plugin = known()
            plugins.append((plugin, plugin.config(value)))
        token = self._server.configurations.put(table.bytes(1), plugins)
        return protocol.PREPARE_CONF, [("word", token)]

    def _request(self, table):
        request, response = Request(table, self._ask), Response()
        for plugin, conf in self._server.configurations.get(request.get_conf_token()):
            plugin.filter(conf, request, response)
            if response.changed():
                return response.reply(request.get_id())
        return request.reply()

    def _response(self, table):
        response = UpstreamResponse(table, self._ask)
        for plugin, conf in self._server.configurations.get(table.number(3, "word")):
            plugin.response_filter(conf, response)
        return response.reply()


class Server:
    """The socket of the runner."""

    def __init__(self, path, lifetime=3600):
        self.configurations = Configurations(lifetime)
        self._places = threading.BoundedSemaphore(CONNECTIONS_MAX)
        if os.path.exists(path):
            os.unlink(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Of this user alone: each peer may call the plugins.
        before = os.umask(0o177)
        try:
            self._socket.bind(path)
        finally:
            os.umask(before)
        self._socket.listen(1024)

    def serve(self):
        """Accepts connections, for ever."""
        while True:
            self._places.acquire()
            peer, _ = self._socket.accept()
            threading.Thread(target=self._run, args=(peer,), daemon=True).start()

    def _run(self, peer):
        try:
            Connection(self, peer).run()
        finally:
            self._places.release()


def main(arguments=None):
    """Starts the runner; the gateway says where it listens."""
    parser = argparse.ArgumentParser(prog="sigma-python-runner", description="Runs plugins in Python for a gateway.")
    parser.add_argument("folder", help="the folder with the plugins, a .py file each")
    folder = parser.parse_args(arguments).folder
    address = os.environ.get("APISIX_LISTEN_ADDRESS", "")
    if not address.startswith("unix:"):
        parser.error("APISIX_LISTEN_ADDRESS is not set; the gateway sets it, to unix:PATH")
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    load(folder)
    server = Server(address[len("unix:"):], int(os.environ.get("APISIX_CONF_EXPIRE_TIME", "3600")))
    log("serving on " + address)
    server.serve()


if __name__ == "__main__":
    main()
