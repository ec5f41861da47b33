//! `decompress`: responses are decompressed for clients that do not accept their coding.

use std::sync::Arc;
use std::task::{self, Poll};

use flate2::{Decompress, FlushDecompress, Status};
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::{Fault, Frame, HeaderId, Headers, Method};
use sigma_plugin::{
    BodyFilter, Configuration, Context, Descriptor, Env, Frames, Phase, PhaseSet, Plugin, ResponseStep, Step,
};
use sigma_schema::described::schema_of;

use crate::shared::encoder::{self, Ask, Compressor, Did, Encoder, Unsent};
use sigma_plugin_kit::budget::Budget;
use sigma_plugin_kit::response_fields::add_vary;
use sigma_plugin_kit::{changed_body, coding};

/// The plugin.
pub(crate) static DECOMPRESS: Descriptor = Descriptor {
    name: "decompress",
    priority: 998,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::HeaderFilter, Phase::BodyFilter]),
    attributes: Some(schema_of::<Budget>),
    build: |build| Ok(Arc::new(Gunzip { budget: Budget::of(build)?, ..build.config()? })),
    ..Descriptor::of::<Gunzip>()
};

/// Decompresses responses in gzip or deflate for clients that do not accept their coding.
///
/// A client accepts what its `Accept-Encoding` names with a weight above 0; without this field it accepts nothing. The
/// body is decompressed while it passes, so its length does not matter. Partial responses, and those that the node
/// forbids to change (`Cache-Control: no-transform`), stay as they are. A body that is damaged ends the response early,
/// so that the client does not take it as complete. Each decompressor takes about 48 KiB; beyond the worker's budget a
/// response stays compressed.
#[derive(Deserialize, JsonSchema)]
struct Gunzip {
    /// Whether `Vary: Accept-Encoding` is added to responses that are compressed by the node.
    #[schemars(extend("default" = true))]
    vary: bool,
    /// Whether the gateway requests gzip from nodes in any case: less traffic between gateway and nodes, and one variant in a
    /// cache.
    #[schemars(extend("default" = false))]
    ask_nodes: bool,
    #[serde(skip)]
    budget: Budget,
}

impl Configuration for Gunzip {}

/// A coding that can be undone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Coding {
    Gzip,
    Deflate,
}

/// The window of 32 KiB, and the state of the decompressor.
const DECOMPRESSOR_BYTES: usize = 48 << 10;

/// The largest window of deflate.
const WINDOW_BITS: u8 = 15;

impl Coding {
    /// Returns the only coding of a response.
    fn of(headers: &Headers) -> Option<Coding> {
        let mut lines = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"Content-Encoding"));
        let (Some((_, value)), None) = (lines.next(), lines.next()) else { return None };
        match value.trim_ascii().to_ascii_lowercase().as_slice() {
            b"gzip" | b"x-gzip" => Some(Coding::Gzip),
            b"deflate" => Some(Coding::Deflate),
            _ => None,
        }
    }

    /// Returns true if the client accepts it.
    fn is_accepted(self, request: &Headers) -> bool {
        let names: &[&str] = match self {
            Coding::Gzip => &["gzip", "x-gzip"],
            Coding::Deflate => &["deflate"],
        };
        names.iter().any(|name| coding::weight_or_any(request, name) > 0)
    }

    fn start(self) -> Decompress {
        match self {
            Coding::Gzip => Decompress::new_gzip(WINDOW_BITS),
            Coding::Deflate => Decompress::new(true),
        }
    }
}

/// The codings that the client accepts, before any plugin changed the field for the node.
#[derive(Debug, Clone, Copy)]
struct Accepted {
    gzip: bool,
    deflate: bool,
}

impl Accepted {
    fn of(request: &Headers) -> Accepted {
        Accepted { gzip: Coding::Gzip.is_accepted(request), deflate: Coding::Deflate.is_accepted(request) }
    }

    fn has(self, coding: Coding) -> bool {
        match coding {
            Coding::Gzip => self.gzip,
            Coding::Deflate => self.deflate,
        }
    }
}

impl Plugin for Gunzip {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        ctx.keep(self, Accepted::of(&ctx.request.headers));
        if self.ask_nodes {
            ctx.request.headers.set(HeaderId::AcceptEncoding, b"gzip");
        }
        Step::Next
    }

    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        if changed_body::weaken_not_modified(ctx) {
            return ResponseStep::Next;
        }
        if self.vary && Coding::of(&ctx.response.headers).is_some() {
            add_vary(&mut ctx.response.headers, "Accept-Encoding");
        }
        ResponseStep::Next
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let coding = Coding::of(&ctx.response.headers)?;
        let accepted =
            ctx.kept::<_, Accepted>(self).copied().unwrap_or_else(|| Accepted::of(&ctx.request.headers));
        if accepted.has(coding) || !changed_body::may_be_encoded(ctx) {
            return None;
        }
        let share = encoder::share(env, DECOMPRESSOR_BYTES, self.budget)?;
        // A decoded body is another representation, as an encoded one is.
        changed_body::encode_head(&mut ctx.response.headers, "identity");
        ctx.response.headers.remove_name(b"Content-Encoding");
        if ctx.request.client_method() == Method::Head {
            return Some(Box::new(Decoded(Box::new(Unsent))));
        }
        let state = Inflater { coding, state: coding.start(), is_at_end: false };
        Some(Box::new(Decoded(Encoder::filter(state, share, true))))
    }
}

/// A filter in the order of its plugin: later filters get the decoded body.
struct Decoded(Box<dyn BodyFilter>);

impl BodyFilter for Decoded {
    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        self.0.poll_frame(input, ctx, task)
    }
}

/// Undoes a coding.
struct Inflater {
    coding: Coding,
    state: Decompress,
    /// All members that have begun are complete.
    is_at_end: bool,
}

impl Compressor for Inflater {
    fn step(&mut self, data: &[u8], ask: Ask, out: &mut [u8]) -> Option<Did> {
        if data.is_empty() {
            // A body that ends within a member is cut off.
            return (self.is_at_end || self.state.total_in() == 0).then_some(Did {
                taken: 0,
                made: 0,
                is_done: true,
            });
        }
        if self.is_at_end {
            // A file of several members is one text (RFC 1952 §2.2). Nothing may follow deflate.
            if self.coding == Coding::Deflate {
                return None;
            }
            self.state = self.coding.start();
            self.is_at_end = false;
        }
        if self.coding == Coding::Deflate && self.state.total_in() == 0 && !has_zlib_header(data) {
            self.state = Decompress::new(false);
        }
        let (before_in, before_out) = (self.state.total_in(), self.state.total_out());
        let status = self.state.decompress(data, out, FlushDecompress::None).ok()?;
        let taken = (self.state.total_in() - before_in) as usize;
        let made = (self.state.total_out() - before_out) as usize;
        self.is_at_end = status == Status::StreamEnd;
        let is_done = ask != Ask::Finish && taken == data.len() && made < out.len();
        Some(Did { taken, made, is_done })
    }
}

/// Returns true if a body in `deflate` begins as zlib does. Some servers leave the wrapper out (RFC 9110 §8.4.1.2). Its
/// first byte names the method 8; no encoder makes blocks that begin so.
fn has_zlib_header(data: &[u8]) -> bool {
    data.first().is_none_or(|first| first & 0x0f == 8)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use serde_json::json;

    use super::*;
    use crate::testing::{Case, entry, refusal};

    fn gzip(text: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    fn deflate(text: &[u8]) -> Vec<u8> {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::new(6));
        encoder.write_all(text).unwrap();
        encoder.finish().unwrap()
    }

    /// The coding of the response, and its body.
    fn run(head: &str, fields: &str, pieces: &[&[u8]]) -> (Case, String, Vec<u8>) {
        let plugin = entry("decompress", json!({})).unwrap();
        let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h\n{head}"));
        case.respond(200, fields);
        let body = case.filter(&plugin, pieces);
        let coding = case.answered("Content-Encoding");
        (case, coding, body)
    }

    #[test]
    fn clients_get_an_accepted_coding() {
        let text = b"a long enough body, ".repeat(10_000);
        let (zipped, deflated) = (gzip(&text), deflate(&text));
        let check = |head: &str, fields: &str, body: &[u8], is_plain: bool| {
            let pieces: Vec<&[u8]> = body.chunks(100).collect();
            let (_, coding, got) = run(head, fields, &pieces);
            assert_eq!(coding.is_empty(), is_plain, "{head} {fields}");
            assert!(got == if is_plain { &text[..] } else { body }, "{head} {fields}");
        };
        let coded = "Content-Type: text/html\nContent-Encoding: gzip\nContent-Length: 5";
        check("", coded, &zipped, true);
        check("Accept-Encoding: br", coded, &zipped, true);
        check("Accept-Encoding: gzip;q=0, br", coded, &zipped, true);
        check("Accept-Encoding: gzip", coded, &zipped, false);
        check("Accept-Encoding: br, *;q=0.1", coded, &zipped, false);
        check("", "Content-Encoding: X-Gzip", &zipped, true);
        check("", "Content-Encoding: deflate", &deflated, true);
        check("Accept-Encoding: gzip", "Content-Encoding: deflate", &deflated, true);
        let mut raw = DeflateEncoder::new(Vec::new(), Compression::new(6));
        raw.write_all(&text).unwrap();
        check("", "Content-Encoding: deflate", &raw.finish().unwrap(), true);
        let mut stored = DeflateEncoder::new(Vec::new(), Compression::none());
        stored.write_all(&text).unwrap();
        check("", "Content-Encoding: deflate", &stored.finish().unwrap(), true);
        check("", "Content-Encoding: br", &zipped, false);
        check("", "Content-Encoding: gzip, gzip", &zipped, false);
        check("", "Content-Encoding: gzip\nCache-Control: no-transform", &zipped, false);
        let two = [gzip(&text[..1000]), gzip(&text[1000..])].concat();
        check("", coded, &two, true);
    }

    #[test]
    fn nodes_are_asked_for_gzip() {
        let plugin = entry("decompress", json!({"ask_nodes": true})).unwrap();
        for (head, is_plain) in [("", true), ("Accept-Encoding: gzip", false), ("Accept-Encoding: br", true)]
        {
            let mut case = Case::new(&format!("GET / HTTP/1.1\nHost: h\n{head}"));
            assert!(case.run(&plugin, Phase::Rewrite).is_none());
            assert_eq!(case.sent("Accept-Encoding").as_deref(), Some("gzip"));
            case.respond(200, "Content-Encoding: gzip");
            let body = case.filter(&plugin, &[&gzip(b"text")]);
            assert_eq!(body == b"text", is_plain, "{head}");
            assert_eq!(case.answered("Vary"), "Accept-Encoding", "{head}");
        }
    }

    #[test]
    fn the_head_describes_the_decoded_body() {
        let fields =
            "Content-Encoding: gzip\nETag: \"e\"\nAccept-Ranges: bytes\nContent-Length: 20\nVary: Origin";
        let (case, ..) = run("", fields, &[&gzip(b"x")]);
        assert_eq!(case.answered("ETag"), "W/\"e\"");
        assert_eq!(case.answered("Accept-Ranges"), "");
        assert_eq!(case.answered("Content-Length"), "");
    }

    #[test]
    fn damaged_bodies_end_early() {
        let zipped = gzip(&b"text".repeat(1000));
        let step = |data: &[u8]| {
            let mut state = Inflater { coding: Coding::Gzip, state: Coding::Gzip.start(), is_at_end: false };
            let mut out = vec![0; 1 << 16];
            state.step(data, Ask::Flush, &mut out).and_then(|_| state.step(&[], Ask::Finish, &mut out))
        };
        assert!(step(&zipped).is_some());
        assert!(step(&zipped[..zipped.len() - 1]).is_none());
        assert!(step(b"not gzip at all").is_none());
        assert!(step(&[]).is_some());
    }

    #[test]
    fn wrong_configurations_are_refused() {
        assert_ne!(refusal("decompress", &json!({"vary": 1})), "");
    }
}
