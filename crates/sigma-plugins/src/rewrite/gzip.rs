//! `gzip`: responses are compressed on their way to the client.
//!
//! The work is done by flate2 on zlib-rs: zlib's algorithm in Rust. Of flate2's backends only
//! those with zlib's interface let the window be chosen, and of these only this one needs no C.

use std::sync::Arc;

use flate2::{Compress, Compression, FlushCompress};
use serde::Deserialize;
use serde_json::json;
use sigma_http::header::list_items;
use sigma_http::{Chunk, HeaderId, Headers, Method, Version};
use sigma_plugin::{
    BodyFilter, Context, Descriptor, Env, Phase, PhaseSet, Pieces, Plugin, ResponseStep, Transform,
};

/// The plugin.
pub(crate) static GZIP: Descriptor = Descriptor {
    name: "gzip",
    priority: 995,
    doc: "Compresses responses with gzip.\n\n\
        Compressed are responses with status 200, 403 or 404 and a listed type that are not encoded yet, for \
        clients that accept it and did not come through a proxy that says so (`Via`). Bodies of unknown length \
        are flushed piece by piece, so that events arrive when they are sent. `window_bits` and `deflate` are \
        Sigma's own.",
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::HeaderFilter, Phase::BodyFilter]),
    schema: || {
        json!({
            "type": "object",
            "properties": {
                "types": {
                    "anyOf": [
                        {"type": "array", "minItems": 1, "items": {"type": "string", "minLength": 1}},
                        {"enum": ["*"]}
                    ],
                    "default": ["text/html"],
                    "description": "Media types to compress, or `*` for all."
                },
                "min_length": {
                    "type": "integer",
                    "minimum": 1,
                    "default": 20,
                    "description": "Bodies known to be shorter are left alone."
                },
                "comp_level": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": 9,
                    "default": 1,
                    "description": "From 1, fast, to 9, small."
                },
                "http_version": {
                    "enum": [1.1, 1.0],
                    "default": 1.1,
                    "description": "The lowest version of requests whose responses are compressed."
                },
                "buffers": {
                    "type": "object",
                    "properties": {
                        "number": {"type": "integer", "minimum": 1, "default": 32, "description": "Number of buffers."},
                        "size": {"type": "integer", "minimum": 1, "default": 4096, "description": "Bytes of each."}
                    },
                    "default": {},
                    "description": "Without effect: compressed pieces do not wait in buffers here."
                },
                "vary": {"type": "boolean", "description": "Adds `Vary: Accept-Encoding`."},
                "window_bits": {
                    "type": "integer",
                    "minimum": 9,
                    "maximum": 15,
                    "default": 15,
                    "description": "Binary logarithm of the window in bytes: memory against size."
                },
                "deflate": {
                    "type": "boolean",
                    "default": false,
                    "description": "Clients that accept `deflate` but not gzip are served with it (RFC 9110 §8.4.1.2)."
                }
            }
        })
    },
    build: |build| Ok(Arc::new(build.config::<Gzip>()?)),
    ..Descriptor::BASE
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins:
      gzip: { types: [application/json], min_length: 100, vary: true }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -s -D - -o /dev/null -H 'Accept-Encoding: gzip' http://127.0.0.1:9080/orders
HTTP/1.1 200 OK
…
Vary: Accept-Encoding
Content-Encoding: gzip
…
$ curl --compressed http://127.0.0.1:9080/orders
{
  "message": "hello from the demo origin",
…
```
"#;

#[derive(Debug, Deserialize)]
struct Gzip {
    types: Types,
    min_length: u64,
    comp_level: u32,
    http_version: f64,
    vary: Option<bool>,
    window_bits: u8,
    deflate: bool,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Types {
    Listed(Vec<String>),
    /// `*` for all.
    Word(String),
}

/// The response is one to compress, if client and final head allow it.
struct Wanted;

/// A coding of a body (RFC 9110 §8.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Gzip,
    Deflate,
}

impl Coding {
    fn token(self) -> &'static str {
        match self {
            Coding::Gzip => "gzip",
            Coding::Deflate => "deflate",
        }
    }
}

impl Gzip {
    fn wants(&self, cx: &Context) -> bool {
        let headers = &cx.response.headers;
        let Some(content_type) = headers.get(HeaderId::ContentType) else { return false };
        let media_type = content_type.split(|b| *b == b';').next().unwrap_or_default().trim_ascii();
        let is_listed = match &self.types {
            Types::Listed(types) => types.iter().any(|listed| listed.as_bytes() == media_type),
            Types::Word(word) => word == "*",
        };
        let is_long = known_length(headers).is_none_or(|length| length >= self.min_length);
        let is_new = cx.request.version >= Version::Http11 || self.http_version < 1.1;
        is_listed && is_long && is_new
    }

    /// The coding that the client takes. Codings are looked at in the order of our preference: a
    /// client's `q` says what it can do, hardly ever what it likes.
    fn coding(&self, request: &Headers) -> Option<Coding> {
        let codings = [Some(Coding::Gzip), self.deflate.then_some(Coding::Deflate)];
        codings.into_iter().flatten().find(|coding| accepts(request, coding.token()))
    }
}

fn known_length(headers: &Headers) -> Option<u64> {
    std::str::from_utf8(headers.get(HeaderId::ContentLength)?).ok()?.parse().ok()
}

/// Whether Accept-Encoding names the coding with a weight above 0.
fn accepts(request: &Headers, coding: &str) -> bool {
    let items = request.get_all(HeaderId::AcceptEncoding).flat_map(list_items);
    let mut weights = items.filter_map(|item| {
        let mut parts = item.split(|b| *b == b';').map(<[u8]>::trim_ascii);
        let named = parts.next()?.eq_ignore_ascii_case(coding.as_bytes());
        let weight = parts.find_map(|part| part.strip_prefix(b"q=").or_else(|| part.strip_prefix(b"Q=")));
        named.then(|| weight.is_none_or(|weight| weight.iter().any(|b| matches!(b, b'1'..=b'9'))))
    });
    weights.next().unwrap_or(false)
}

impl Plugin for Gzip {
    fn header_filter(&self, cx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        if !self.wants(cx) {
            return ResponseStep::Next;
        }
        if self.vary == Some(true) {
            cx.response.headers.append("Vary", b"Accept-Encoding");
        }
        cx.keep(self, Wanted);
        ResponseStep::Next
    }

    /// The decision falls here, when all header filters have run.
    fn body_filter(&self, cx: &mut Context, _env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let Wanted = cx.take_kept(self)?;
        let request = &cx.request;
        if !matches!(cx.response.status, 200 | 403 | 404)
            || request.client_method() == Method::Head
            || request.headers.find(b"Via").is_some()
            || cx.response.headers.find(b"Content-Encoding").is_some_and(|value| !value.is_empty())
        {
            return None;
        }
        let coding = self.coding(&request.headers)?;
        let headers = &mut cx.response.headers;
        let flushes = !headers.has(HeaderId::ContentLength);
        for name in ["Content-Encoding", "Accept-Ranges"] {
            headers.remove_name(name.as_bytes());
        }
        headers.append("Content-Encoding", coding.token().as_bytes());
        // The bytes differ, so only weak comparison can hold (RFC 9110 §8.8.1).
        if let Some(tag) = headers.find(b"ETag").filter(|tag| !tag.starts_with(b"W/")).map(<[u8]>::to_vec) {
            headers.remove_name(b"ETag");
            headers.append_parts(b"ETag", &[b"W/", &tag]);
        }
        let level = Compression::new(self.comp_level);
        let compress = match coding {
            Coding::Gzip => Compress::new_gzip(level, self.window_bits),
            Coding::Deflate => Compress::new_with_window_bits(level, true, self.window_bits),
        };
        Some(Compressor { compress, flushes, buffer: vec![0; BUFFER_BYTES].into_boxed_slice() }.filter())
    }
}

/// Compressed bytes that are passed on at a time.
const BUFFER_BYTES: usize = 16 * 1024;

struct Compressor {
    compress: Compress,
    /// Each piece is passed on at once.
    flushes: bool,
    buffer: Box<[u8]>,
}

impl Compressor {
    fn run(&mut self, mut data: &[u8], flush: FlushCompress, out: &mut Pieces) {
        loop {
            let (before_in, before_out) = (self.compress.total_in(), self.compress.total_out());
            // It fails only when it can do nothing more: all is in and the output is flushed.
            let result = self.compress.compress(data, &mut self.buffer, flush);
            let taken = (self.compress.total_in() - before_in) as usize;
            let made = (self.compress.total_out() - before_out) as usize;
            data = &data[taken..];
            out.bytes(&self.buffer[..made]);
            let is_done = match flush {
                FlushCompress::Finish => matches!(result, Ok(flate2::Status::StreamEnd)),
                _ => data.is_empty() && made < self.buffer.len(),
            };
            if is_done || result.is_err() || (taken == 0 && made == 0) {
                return;
            }
        }
    }
}

impl Transform for Compressor {
    fn encodes(&self) -> bool {
        true
    }

    fn data(&mut self, _cx: &mut Context, data: Chunk, out: &mut Pieces) {
        let flush = if self.flushes { FlushCompress::Sync } else { FlushCompress::None };
        self.run(&data, flush, out);
    }

    fn end(&mut self, _cx: &mut Context, _trailers: Option<&mut Headers>, out: &mut Pieces) {
        self.run(&[], FlushCompress::Finish, out);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use serde_json::Value;

    use super::*;
    use crate::testing::{Case, entry, refusal};

    const HTML: &str = "Content-Type: text/html; charset=utf-8\nETag: \"e\"\nAccept-Ranges: bytes";

    /// The coding of the answer, and the body decoded.
    fn run(conf: &Value, head: &str, status: u16, fields: &str, pieces: &[&[u8]]) -> (Case, String, Vec<u8>) {
        let plugin = entry("gzip", conf.clone()).unwrap();
        let mut case = Case::new(head);
        case.respond(status, fields);
        let body = case.filter(&plugin, pieces);
        let mut plain = Vec::new();
        let coding = case.answered("Content-Encoding");
        match coding.as_str() {
            "gzip" => drop(flate2::read::GzDecoder::new(&body[..]).read_to_end(&mut plain).unwrap()),
            "deflate" => drop(flate2::read::ZlibDecoder::new(&body[..]).read_to_end(&mut plain).unwrap()),
            _ => plain = body,
        }
        (case, coding, plain)
    }

    #[test]
    fn who_gets_what() {
        let check = |conf: Value, head: &str, status: u16, fields: &str, expected: &str| {
            let body = [&b"a long enough body, "[..], &[b'x'; 100_000]];
            let (_, coding, plain) = run(&conf, head, status, fields, &body);
            assert_eq!(coding, expected, "{conf} {head} {status} {fields}");
            assert_eq!(plain, body.concat());
        };
        let head = |fields: &str| format!("GET / HTTP/1.1\nHost: h\n{fields}");
        let gzip = head("Accept-Encoding: deflate, gzip;q=0.5");
        let none = json!({});
        check(none.clone(), &gzip, 200, HTML, "gzip");
        check(none.clone(), &gzip, 404, HTML, "gzip");
        check(none.clone(), &gzip, 201, HTML, "");
        check(none.clone(), &gzip, 200, "Content-Type: text/plain", "");
        check(none.clone(), &gzip, 200, "", "");
        check(json!({"types": ["text/plain"]}), &gzip, 200, "Content-Type: text/plain", "gzip");
        check(json!({"types": "*"}), &gzip, 200, "Content-Type: a/b", "gzip");
        check(none.clone(), &gzip, 200, &format!("{HTML}\nContent-Length: 19"), "");
        check(none.clone(), &gzip, 200, &format!("{HTML}\nContent-Length: 20"), "gzip");
        check(none.clone(), &head(""), 200, HTML, "");
        check(none.clone(), &head("Accept-Encoding: gzip;q=0"), 200, HTML, "");
        check(none.clone(), &head("Accept-Encoding: gzip; q=0.00"), 200, HTML, "");
        check(none.clone(), &head("Accept-Encoding: gzip\nVia: 1.1 x"), 200, HTML, "");
        check(none.clone(), &head("Accept-Encoding: deflate"), 200, HTML, "");
        check(
            json!({"deflate": true, "window_bits": 9}),
            &head("Accept-Encoding: deflate"),
            200,
            HTML,
            "deflate",
        );
        check(json!({"window_bits": 9, "comp_level": 9}), &gzip, 200, HTML, "gzip");
        let old = "GET / HTTP/1.0\nHost: h\nAccept-Encoding: gzip";
        check(none.clone(), old, 200, HTML, "");
        check(json!({"http_version": 1.0}), old, 200, HTML, "gzip");
        let (_, coding, _) = run(&none, &gzip, 200, &format!("{HTML}\nContent-Encoding: br"), &[b"x"]);
        assert_eq!(coding, "br");
    }

    #[test]
    fn the_head_tells_of_it() {
        let head = "GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip";
        let (case, ..) = run(&json!({"vary": true}), head, 200, &format!("{HTML}\nVary: Origin"), &[b"x"]);
        assert_eq!(case.answered("ETag"), "W/\"e\"");
        assert_eq!(case.answered("Accept-Ranges"), "");
        assert_eq!(case.answered("Vary"), "Origin, Accept-Encoding");
    }

    #[test]
    fn pieces_of_unknown_length_are_readable_at_once() {
        let plugin = entry("gzip", json!({})).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip");
        case.respond(200, HTML);
        case.header_filter(&plugin);
        let compress = Compress::new_gzip(Compression::new(1), 15);
        let mut filter = Compressor { compress, flushes: true, buffer: vec![0; 64].into() };
        let mut bytes = Vec::new();
        for event in ["data: 1\n\n", "data: 2\n\n"] {
            let mut out = Pieces::default();
            filter.data(&mut case.cx, Chunk::copy_of(event.as_bytes()), &mut out);
            for frame in out.drain() {
                if let sigma_http::Frame::Data(data) = frame {
                    bytes.extend_from_slice(&data);
                }
            }
            let mut plain = Vec::new();
            // The stream has no end yet; what came so far must be there all the same.
            let _ = flate2::read::GzDecoder::new(&bytes[..]).read_to_end(&mut plain);
            assert!(plain.ends_with(event.as_bytes()));
        }
    }

    #[test]
    fn wrong_configurations_are_refused() {
        let check = |conf: Value| assert_ne!(refusal("gzip", &conf), "", "{conf}");
        for conf in [
            json!({"types": []}),
            json!({"types": "text/html"}),
            json!({"min_length": 0}),
            json!({"comp_level": 10}),
            json!({"http_version": 2}),
            json!({"buffers": {"number": 0}}),
            json!({"window_bits": 8}),
        ] {
            check(conf);
        }
    }
}
