"""Violates QUIC with aioquic at the address in the first argument, and trusts the authority in the file of the second. Prints
each case whose connection does not end with the expected error, then their number. The cases are those of h3spec."""

import asyncio
import sys
from urllib.parse import urlsplit

from aioquic.asyncio import QuicConnectionProtocol, connect
from aioquic.buffer import Buffer, encode_uint_var
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ConnectionTerminated, HandshakeCompleted
from aioquic.quic.packet import (
    QuicPreferredAddress,
    pull_quic_transport_parameters,
    push_quic_transport_parameters,
)

FLOW_CONTROL, STREAM_LIMIT, STREAM_STATE, ENCODING, PARAMETER, VIOLATION = 0x3, 0x4, 0x5, 0x7, 0x8, 0xA
UNEXPECTED_MESSAGE, MISSING_EXTENSION, NO_APPLICATION_PROTOCOL = 0x10A, 0x16D, 0x178

PING, TOO_MANY = 0x01, (1 << 60) + 1


def numbers(*values):
    return b"".join(encode_uint_var(value) for value in values)


def new_connection_id(sequence, retired, length):
    return numbers(sequence, retired) + bytes([length]) + bytes(length) + bytes(16)


# Frames after the handshake: a name, the type, the content, the error.
# Stream 2 is a unidirectional stream of the client, 3 one of the server, 83 one that the server has not opened.
FRAMES = [
    ("an unknown frame", 0x3F, b"", ENCODING),
    ("RESET_STREAM of a stream of the server", 0x04, numbers(3, 0, 0), STREAM_STATE),
    ("STOP_SENDING of a stream that the server receives", 0x05, numbers(2, 0), STREAM_STATE),
    ("STOP_SENDING of a stream that is not open", 0x05, numbers(83, 0), STREAM_STATE),
    ("STREAM of a stream of the server", 0x08, numbers(3) + b"x", STREAM_STATE),
    ("STREAM beyond the limit of streams", 0x08, numbers(4_000) + b"x", STREAM_LIMIT),
    ("STREAM beyond the window", 0x0C, numbers(0, 1 << 40) + b"x", FLOW_CONTROL),
    ("MAX_STREAM_DATA of a stream that the server receives", 0x11, numbers(2, 100_000), STREAM_STATE),
    ("MAX_STREAM_DATA of a stream that is not open", 0x11, numbers(83, 100_000), STREAM_STATE),
    ("MAX_STREAMS above 2^60", 0x12, numbers(TOO_MANY), ENCODING),
    ("MAX_STREAMS above 2^60, one way", 0x13, numbers(TOO_MANY), ENCODING),
    ("STREAMS_BLOCKED above 2^60", 0x16, numbers(TOO_MANY), ENCODING),
    ("STREAMS_BLOCKED above 2^60, one way", 0x17, numbers(TOO_MANY), ENCODING),
    ("NEW_CONNECTION_ID that retires itself", 0x18, new_connection_id(1, 2, 8), ENCODING),
    ("NEW_CONNECTION_ID without an id", 0x18, new_connection_id(1, 0, 0), ENCODING),
    ("NEW_CONNECTION_ID of 21 bytes", 0x18, new_connection_id(1, 0, 21), ENCODING),
    ("RETIRE_CONNECTION_ID of an unknown id", 0x19, numbers(1_000), VIOLATION),
    ("NEW_TOKEN", 0x07, numbers(4) + b"text", VIOLATION),
    ("HANDSHAKE_DONE", 0x1E, b"", VIOLATION),
    ("KeyUpdate of TLS", 0x06, numbers(0, 5) + b"\x18\x00\x00\x01\x00", UNEXPECTED_MESSAGE),
]

PREFERRED = QuicPreferredAddress(
    ipv4_address=("127.0.0.1", 1), ipv6_address=None, connection_id=bytes(8), stateless_reset_token=bytes(16)
)

# Transport parameters; all are refused for the same reason.
PARAMETERS = [
    ("initial_source_connection_id", None),
    ("original_destination_connection_id", bytes(8)),
    ("preferred_address", PREFERRED),
    ("retry_source_connection_id", bytes(8)),
    ("stateless_reset_token", bytes(16)),
    ("max_udp_payload_size", 1199),
    ("ack_delay_exponent", 21),
    ("max_ack_delay", 1 << 14),
]


class Client(QuicConnectionProtocol):
    """A client that changes its handshake by `prepare`, and sends a frame after it."""

    def __init__(self, quic, prepare=None, frame=None, **rest):
        super().__init__(quic, **rest)
        self.http, self.frame = H3Connection(quic), frame
        self.end = asyncio.get_running_loop().create_future()
        if prepare:
            prepare(quic)

    def quic_event_received(self, event):
        if isinstance(event, HandshakeCompleted) and self.frame:
            write_ping = self._quic._write_ping_frame

            def write(builder, uids=(), comment=""):
                if not uids:
                    return write_ping(builder, uids, comment)
                kind, content = self.frame
                builder.start_frame(kind, capacity=len(content) + 8).push_bytes(content)

            self._quic._write_ping_frame = write
            self._quic.send_ping(1)
            self.transmit()
        if isinstance(event, ConnectionTerminated) and not self.end.done():
            self.end.set_result(event.error_code)


def with_parameter(name, value):
    def prepare(quic):
        serialize = quic._serialize_transport_parameters

        def changed():
            parameters = pull_quic_transport_parameters(Buffer(data=serialize()))
            setattr(parameters, name, value)
            buffer = Buffer(capacity=1_000)
            push_quic_transport_parameters(buffer, parameters)
            return buffer.data

        quic._serialize_transport_parameters = changed

    return prepare


def without_parameters(quic):
    initialize = quic._initialize

    def changed(peer_cid):
        initialize(peer_cid)
        quic.tls.handshake_extensions = []

    quic._initialize = changed


def with_early_challenge(quic):
    """A PATH_CHALLENGE beside the ClientHello."""
    write_crypto = quic._write_crypto_frame

    def changed(builder, **rest):
        written = write_crypto(builder=builder, **rest)
        builder.start_frame(0x1A, capacity=9).push_bytes(bytes(8))
        quic._write_crypto_frame = write_crypto
        return written

    quic._write_crypto_frame = changed


async def error_of(base, authority, alpn=H3_ALPN, **what):
    url = urlsplit(base)
    configuration = QuicConfiguration(alpn_protocols=alpn, is_client=True, server_name=url.hostname)
    configuration.load_verify_locations(authority)
    create = lambda quic, **rest: Client(quic, **what, **rest)
    options = {"configuration": configuration, "create_protocol": create, "wait_connected": False}
    async with connect("127.0.0.1", url.port, **options) as client:
        client.transmit()
        return await asyncio.wait_for(client.end, 10)


async def main(base, authority):
    cases = [(name, {"frame": (kind, content)}, error) for name, kind, content, error in FRAMES]
    cases += [(f"{name} {value!r}", {"prepare": with_parameter(name, value)}, PARAMETER) for name, value in PARAMETERS]
    cases += [
        ("no transport parameters", {"prepare": without_parameters}, MISSING_EXTENSION),
        ("no ALPN", {"alpn": None}, NO_APPLICATION_PROTOCOL),
        ("another ALPN", {"alpn": ["h2"]}, NO_APPLICATION_PROTOCOL),
        ("PATH_CHALLENGE in an Initial packet", {"prepare": with_early_challenge}, VIOLATION),
    ]
    for name, what, expected in cases:
        try:
            error = await error_of(base, authority, **what)
        except TimeoutError:
            error = None
        if error != expected:
            print(f"{name}: {error and hex(error)}, not {expected:#x}")
    print(len(cases), "cases")


asyncio.run(main(*sys.argv[1:3]))
