//! Bytes that no library sends: frames of HTTP/2, and the first message of a TLS handshake.

/// The preface of a client of HTTP/2.
pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;

pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    out.extend([kind, flags]);
    out.extend(stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// Preface and SETTINGS with this window for each stream.
pub(super) fn hello(window: u32) -> Vec<u8> {
    let mut settings = vec![0, 4];
    settings.extend(window.to_be_bytes());
    [PREFACE.to_vec(), frame(SETTINGS, 0, 0, &settings)].concat()
}

/// The fields of `GET` for a path shorter than 127 bytes.
pub(super) fn get(path: &str) -> Vec<u8> {
    let mut block = vec![0x82, 0x86, 0x01, 1, b'a', 0x04, path.len() as u8];
    block.extend_from_slice(path.as_bytes());
    block
}

/// A field of 3,900 bytes that enters the table of the connection.
pub(super) fn large_field() -> Vec<u8> {
    let mut field = vec![0x40, 1, b'x'];
    let length = 3_900 - 127;
    field.extend([0x7f, (length % 128) as u8 | 0x80, (length / 128) as u8]);
    field.extend(vec![b'y'; 3_900]);
    field
}

/// The first entry of the table, seven times.
pub(super) const COPIES: [u8; 7] = [0xbe; 7];

/// A ClientHello of TLS 1.3 for `hostile.test`, with a key share that is never used.
pub(super) fn client_hello() -> Vec<u8> {
    let name = b"hostile.test";
    let sized = |bytes: &[u8]| [&(bytes.len() as u16).to_be_bytes()[..], bytes].concat();
    let extension = |kind: u16, body: &[u8]| [&kind.to_be_bytes()[..], &sized(body)].concat();
    let server_name = sized(&[&[0][..], &sized(name)].concat());
    let key_share = sized(&[&[0, 0x1d][..], &sized(&[9; 32])].concat());
    let extensions = [
        extension(0, &server_name),
        extension(0x0a, &sized(&[0, 0x1d])),
        extension(0x0d, &sized(&[4, 3, 8, 4])),
        extension(0x2b, &[2, 3, 4]),
        extension(0x33, &key_share),
    ]
    .concat();
    let body =
        [&[3, 3][..], &[7; 32], &[0], &sized(&[0x13, 1, 0x13, 2, 0x13, 3]), &[1, 0], &sized(&extensions)]
            .concat();
    let handshake = [&[1][..], &(body.len() as u32).to_be_bytes()[1..], &body].concat();
    [&[0x16, 3, 1][..], &sized(&handshake)].concat()
}
