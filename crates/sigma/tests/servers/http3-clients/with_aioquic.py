"""Sends requests with aioquic to the address in the first argument, which has a port, and trusts the authority in the file of
the second. Prints a line for each check."""

import asyncio
import sys
from urllib.parse import urlsplit

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import DataReceived, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration


class Client(QuicConnectionProtocol):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.http = H3Connection(self._quic)
        self.waiting = {}

    def quic_event_received(self, event):
        for received in self.http.handle_event(event):
            if isinstance(received, (HeadersReceived, DataReceived)):
                response = self.waiting[received.stream_id]
                if isinstance(received, HeadersReceived):
                    response["fields"].update(received.headers)
                else:
                    response["body"] += received.data
                if received.stream_ended and not response["end"].done():
                    response["end"].set_result(None)

    async def request(self, authority, method, path, body=b""):
        stream = self._quic.get_next_available_stream_id()
        end = asyncio.get_running_loop().create_future()
        response = self.waiting[stream] = {"fields": {}, "body": b"", "end": end}
        fields = [(b":method", method), (b":scheme", b"https"), (b":authority", authority), (b":path", path)]
        self.http.send_headers(stream, fields, end_stream=not body)
        if body:
            self.http.send_data(stream, body, end_stream=True)
        self.transmit()
        await end
        return int(response["fields"][b":status"]), response["body"]


async def main(base, authority):
    url = urlsplit(base)
    name = url.netloc.encode()
    configuration = QuicConfiguration(alpn_protocols=H3_ALPN, is_client=True, server_name=url.hostname)
    configuration.load_verify_locations(authority)
    options = {"configuration": configuration, "create_protocol": Client}
    async with connect("127.0.0.1", url.port, **options) as client:
        got = await asyncio.gather(*(client.request(name, b"GET", b"/many/%d" % n) for n in range(50)))
        print("many", sum(status == 200 for status, _ in got))
        sent = bytes(range(256)) * 1200
        print("upload", await client.request(name, b"POST", b"/post", sent) == (200, sent))
        client.request_key_update()
        print("key update", (await client.request(name, b"GET", b"/key-update"))[0])
        client.change_connection_id()
        print("connection id", (await client.request(name, b"GET", b"/connection-id"))[0])
        # Another local port, as after a router has lost its table.
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: client, local_addr=("::ffff:127.0.0.1", 0)
        )
        print("new address", (await client.request(name, b"GET", b"/new-address"))[0])
        transport.close()


asyncio.run(asyncio.wait_for(main(*sys.argv[1:3]), 60))
