//! `gzip`: responses are compressed on their way to the client.
//!
//! The work is done by flate2 on zlib-rs: zlib's algorithm in Rust. Of flate2's backends only
//! those with zlib's interface let the window be chosen, and of these only this one needs no C.

use std::sync::Arc;

use flate2::{Compress, Compression, FlushCompress, Status};
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::Headers;
use sigma_plugin::{
    BodyFilter, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep,
};
use sigma_schema::described::schema_of;

use crate::shared::encoder::{self, Ask, Compressor, Did};
use sigma_plugin_kit::budget::Budget;
use sigma_plugin_kit::changed_body;
use sigma_plugin_kit::coding::{self, Offer, Which};

/// The plugin.
pub(crate) static GZIP: Descriptor = Descriptor {
    name: "gzip",
    priority: 995,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::HeaderFilter, Phase::BodyFilter]),
    attributes: Some(schema_of::<Budget>),
    build: |build| Ok(Arc::new(Gzip { budget: Budget::of(build)?, ..build.config()? })),
    ..Descriptor::of::<Gzip>()
};

/// Compresses responses with gzip.
///
/// It compresses responses with status 200, 403 or 404, a listed type and no content coding. The client must accept
/// gzip and not come through a proxy (`Via`). Bodies of unknown length are flushed piece by piece, so that events
/// arrive when they are sent. `window_bits` and `deflate` are Sigma's own. With `zstd` or `brotli` on the same route
/// the client's preferred coding is used, on a tie the first of `zstd`, `brotli`, `gzip`. The compressor of a response
/// takes about 300 KiB until the last byte. All compressors of one worker, with `zstd` and `brotli`, take at most 256
/// MiB, or `plugin_attr.gzip.worker_bytes`; a response beyond that is not compressed.
#[derive(Deserialize, JsonSchema)]
struct Gzip {
    /// Compression level from 1 (fast) to 9 (small).
    #[schemars(range(min = 1, max = 9), extend("default" = 1))]
    comp_level: u32,
    /// Without effect: compressed pieces are sent without these buffers.
    #[schemars(extend("default" = {}))]
    #[expect(dead_code, reason = "taken for APISIX's sake")]
    buffers: Buffers,
    /// Binary logarithm of the window in bytes. A larger window makes responses smaller and needs more memory.
    #[schemars(range(min = 9, max = 15), extend("default" = 15, "own_default" = true))]
    window_bits: u8,
    /// Whether clients that accept `deflate` but not gzip get it (RFC 9110 §8.4.1.2).
    #[schemars(extend("default" = false, "own_default" = true))]
    deflate: bool,
    #[serde(flatten)]
    which: Which,
    #[serde(skip)]
    budget: Budget,
}

#[derive(Deserialize, JsonSchema)]
#[expect(dead_code, reason = "taken for APISIX's sake")]
struct Buffers {
    /// Number of buffers.
    #[schemars(range(min = 1), extend("default" = 32))]
    number: u64,
    /// Bytes of each buffer.
    #[schemars(range(min = 1), extend("default" = 4096))]
    size: u64,
}

impl Configuration for Gzip {}

const GZIP_TOKEN: &str = "gzip";
const DEFLATE_TOKEN: &str = "deflate";

impl Gzip {
    /// The coding that the client takes, and how much it wants it. Between these two our own preference
    /// decides: a client's `q` names its abilities, hardly ever its preference.
    fn coding(&self, request: &Headers) -> Option<(&'static str, u16)> {
        let tokens = [Some(GZIP_TOKEN), self.deflate.then_some(DEFLATE_TOKEN)];
        let weighed = tokens.into_iter().flatten().map(|token| (token, coding::weight(request, token)));
        weighed.filter_map(|(token, weight)| Some((token, weight.filter(|weight| *weight > 0)?))).next()
    }
}

/// Whether the final head is one that nginx compresses behind.
fn may(ctx: &Context) -> bool {
    matches!(ctx.response.status, 200 | 403 | 404)
        && ctx.request.headers.find(b"Via").is_none()
        && changed_body::may_be_encoded(ctx)
}

impl Plugin for Gzip {
    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        if self.which.is_not_modified(ctx) || !self.which.takes(ctx) {
            return ResponseStep::Next;
        }
        // A part of a response depends on the field as the whole does; other statuses are never compressed.
        if matches!(ctx.response.status, 200 | 206 | 403 | 404) {
            self.which.add_vary(&mut ctx.response.headers);
        }
        if let Some((token, weight)) = self.coding(&ctx.request.headers) {
            coding::offer(self, Offer { token, weight, may }, ctx);
        }
        ResponseStep::Next
    }

    /// The decision falls here, when all header filters have run.
    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let token = coding::chosen(self, ctx)?;
        // Four times the window, tables, and the output in the making (zlib's zconf.h).
        let share = encoder::share(env, (4 << self.window_bits) + (192 << 10), self.budget)?;
        let level = Compression::new(self.comp_level);
        let compress = match token {
            DEFLATE_TOKEN => Compress::new_with_window_bits(level, true, self.window_bits),
            _ => Compress::new_gzip(level, self.window_bits),
        };
        Some(encoder::encode(State(compress), share, token, ctx))
    }
}

struct State(Compress);

impl Compressor for State {
    fn step(&mut self, data: &[u8], ask: Ask, out: &mut [u8]) -> Option<Did> {
        let flush = match ask {
            Ask::Take => FlushCompress::None,
            Ask::Flush => FlushCompress::Sync,
            Ask::Finish => FlushCompress::Finish,
        };
        let (before_in, before_out) = (self.0.total_in(), self.0.total_out());
        let status = self.0.compress(data, out, flush).ok()?;
        let taken = (self.0.total_in() - before_in) as usize;
        let made = (self.0.total_out() - before_out) as usize;
        let is_done = match ask {
            Ask::Finish => status == Status::StreamEnd,
            // A full buffer may not have held all.
            Ask::Take | Ask::Flush => taken == data.len() && made < out.len(),
        };
        Some(Did { taken, made, is_done })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use serde_json::{Value, json};
    use sigma_plugin::Node;

    use super::*;
    use crate::testing::{Case, entry, refusal, roster};

    const HTML: &str = "Content-Type: text/html; charset=utf-8\nETag: \"e\"\nAccept-Ranges: bytes";

    /// The coding of the response, and the body decoded.
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

    /// Where the compressors of a worker would take too much, a response goes out as it is.
    #[test]
    fn memory_has_a_bound() {
        for (worker_bytes, coding) in [(1 << 20, "gzip"), (300 << 10, "")] {
            let node = Node::new(|_| (), json!({"gzip": {"worker_bytes": worker_bytes}}), String::new());
            let conf = Arc::new(json!({}));
            let built =
                roster().build("gzip", &conf, Value::clone(&conf), "r", &|_: &str| None, &Arc::new(node));
            let plugin = built.unwrap();
            let mut case = Case::new("GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip");
            for _ in 0..3 {
                case.request("GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip");
                case.respond(200, HTML);
                let body = case.filter(&plugin, &[b"a long enough body, and more of it"]);
                assert_eq!((case.answered("Content-Encoding").as_str(), body.is_empty()), (coding, false));
            }
        }
    }

    #[test]
    fn clients_get_the_coding_they_accept() {
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
    fn the_head_names_the_coding() {
        let head = "GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip";
        let (case, ..) = run(&json!({"vary": true}), head, 200, &format!("{HTML}\nVary: Origin"), &[b"x"]);
        assert_eq!(case.answered("ETag"), "W/\"e\"");
        assert_eq!(case.answered("Accept-Ranges"), "");
        assert_eq!(case.answered("Vary"), "Origin, Accept-Encoding");
    }

    #[test]
    fn parts_vary_as_the_whole_does_and_errors_do_not() {
        let head = "GET / HTTP/1.1\nHost: h\nAccept-Encoding: gzip";
        let conf = json!({"vary": true, "min_length": 100});
        let check = |status: u16, fields: &str, expected: &str| {
            let (case, ..) = run(&conf, head, status, &format!("{HTML}\n{fields}"), &[b"x"]);
            assert_eq!(case.answered("Vary"), expected, "{status} {fields}");
        };
        check(206, "Content-Range: bytes 0-6/200\nContent-Length: 7", "Accept-Encoding");
        check(206, "Content-Range: bytes 0-6/50\nContent-Length: 7", "");
        check(404, "", "Accept-Encoding");
        check(500, "", "");
    }

    #[test]
    fn pieces_of_unknown_length_are_readable_at_once() {
        let mut state = State(Compress::new_gzip(Compression::new(1), 15));
        let (mut bytes, mut out) = (Vec::new(), [0; 64]);
        for event in ["data: 1\n\n", "data: 2\n\n"] {
            let mut left = event.as_bytes();
            loop {
                let did = state.step(left, Ask::Flush, &mut out).unwrap();
                bytes.extend_from_slice(&out[..did.made]);
                left = &left[did.taken..];
                if did.is_done {
                    break;
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
