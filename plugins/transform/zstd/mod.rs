//! `zstd`: responses are compressed on their way to the client (RFC 8878).

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{
    BodyFilter, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep,
};
use sigma_schema::described::schema_of;
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer};

use crate::shared::encoder::{self, Ask, Compressor, Did};
use sigma_plugin_kit::budget::Budget;
use sigma_plugin_kit::coding::{self, Which};

/// The plugin.
pub(crate) static ZSTD: Descriptor = Descriptor {
    name: "zstd",
    priority: 997,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::HeaderFilter, Phase::BodyFilter]),
    attributes: Some(schema_of::<Budget>),
    build: |build| Ok(Arc::new(Zstd { budget: Budget::of(build)?, ..build.config()? })),
    ..Descriptor::of::<Zstd>()
};

/// Compresses responses with Zstandard.
///
/// Sigma's own. It compresses responses of a listed type without a content coding, for clients that accept `zstd` or
/// `*`. It does not compress ranges and responses with `Cache-Control: no-transform`. Bodies of unknown length are
/// flushed piece by piece, so that events arrive when they are sent. With `brotli` or `gzip` on the same route the
/// client's preferred coding is used, on a tie the first of `zstd`, `brotli`, `gzip`.
///
/// Each response needs memory for a compressor until it ends: up to 2 MiB with the defaults, and up to 96 MiB at level
/// 19 with the largest window. No window exceeds the 8 MiB that every client must be able to hold (RFC 9659). All
/// compressors of one worker, with `brotli` and `gzip`, take at most 256 MiB, or `plugin_attr.zstd.worker_bytes`; a
/// response beyond that is not compressed.
#[derive(Deserialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
struct Zstd {
    /// Compression level from 1 (fast) to 19 (small).
    #[schemars(range(min = 1, max = 19), extend("default" = 3))]
    comp_level: i32,
    /// Binary logarithm of the window in bytes. A larger window makes responses smaller and needs more memory, also at
    /// the client.
    #[schemars(range(min = 10, max = 23), extend("default" = 19))]
    window_log: u32,
    #[serde(flatten)]
    which: Which,
    #[serde(skip)]
    budget: Budget,
}

impl Configuration for Zstd {}

const TOKEN: &str = "zstd";

impl Plugin for Zstd {
    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        encoder::offer(self, &self.which, TOKEN, ctx);
        ResponseStep::Next
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let token = coding::chosen(self, ctx)?;
        let share = encoder::share(env, self.bytes(), self.budget)?;
        let compressor = self.compressor()?;
        Some(encoder::encode(compressor, share, token, ctx))
    }
}

impl Zstd {
    /// Returns the largest size of a compressor: its tables grow with the window, at high levels more.
    fn bytes(&self) -> usize {
        let tables = if self.comp_level < 6 { 6 } else { 12 };
        (tables << self.window_log) + (1 << 20)
    }

    /// None if there is no memory for it.
    fn compressor(&self) -> Option<State> {
        let mut state = CCtx::try_create()?;
        state.set_parameter(CParameter::CompressionLevel(self.comp_level)).ok()?;
        state.set_parameter(CParameter::WindowLog(self.window_log)).ok()?;
        Some(State(state))
    }
}

struct State(CCtx<'static>);

impl Compressor for State {
    fn step(&mut self, data: &[u8], ask: Ask, out: &mut [u8]) -> Option<Did> {
        let operation = match ask {
            Ask::Take => ZSTD_EndDirective::ZSTD_e_continue,
            Ask::Flush => ZSTD_EndDirective::ZSTD_e_flush,
            Ask::Finish => ZSTD_EndDirective::ZSTD_e_end,
        };
        let room = out.len();
        let (mut input, mut output) = (InBuffer::around(data), OutBuffer::around(out));
        let left = self.0.compress_stream2(&mut output, &mut input, operation).ok()?;
        let (taken, made) = (input.pos, output.pos());
        let is_done = match ask {
            // The rest is held back by the compressor.
            Ask::Take => taken == data.len() && made < room,
            Ask::Flush | Ask::Finish => taken == data.len() && left == 0,
        };
        Some(Did { taken, made, is_done })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Case, entry, refusal};
    use serde_json::{Value, json};

    const HTML: &str = "Content-Type: text/html; charset=utf-8\nETag: \"e\"";

    /// Returns the readable part of it, with or without an end.
    fn plain(encoded: &[u8]) -> Vec<u8> {
        let mut state = zstd_safe::DCtx::create();
        let (mut plain, mut input) = (vec![0; 1 << 20], InBuffer::around(encoded));
        let mut output = OutBuffer::around(&mut plain[..]);
        state.decompress_stream(&mut output, &mut input).unwrap();
        let made = output.pos();
        plain.truncate(made);
        plain
    }

    #[test]
    fn clients_get_the_coding_they_accept() {
        let body = [&b"a long enough body, "[..], &[b'x'; 100_000]];
        let check = |conf: Value, line: &str, accept: &str, fields: &str, expected: &str| {
            let plugin = entry("zstd", conf.clone()).unwrap();
            let mut case = Case::new(&format!("{line}\nHost: h\n{accept}"));
            case.respond(200, fields);
            let passed = case.filter(&plugin, &body);
            let coding = case.answered("Content-Encoding");
            assert_eq!(coding, expected, "{conf} {line} {accept} {fields}");
            let decoded = if coding == "zstd" && !line.starts_with("HEAD") { plain(&passed) } else { passed };
            assert!(decoded == body.concat(), "{conf} {line} {accept} {fields}");
        };
        let (get, zstd, none) = ("GET / HTTP/1.1", "Accept-Encoding: gzip, zstd;q=0.5", || json!({}));
        check(none(), get, zstd, HTML, "zstd");
        check(none(), "HEAD / HTTP/1.1", zstd, HTML, "zstd");
        check(none(), get, "Accept-Encoding: *", HTML, "zstd");
        check(none(), get, "", HTML, "");
        check(none(), get, "Accept-Encoding: zstd;q=0", HTML, "");
        check(none(), get, zstd, &format!("{HTML}\nContent-Length: 19"), "");
        check(none(), get, zstd, &format!("{HTML}\nContent-Length: 20"), "zstd");
        check(none(), get, zstd, "Content-Type: text/plain", "");
        check(none(), get, zstd, &format!("{HTML}\nContent-Range: bytes 0-1/2"), "");
        check(none(), get, zstd, &format!("{HTML}\nContent-Encoding: gzip"), "gzip");
        check(none(), "GET / HTTP/1.0", zstd, HTML, "");
        for comp_level in [1, 3, 9, 19] {
            for window_log in [10, 19, 23] {
                check(
                    json!({"comp_level": comp_level, "window_log": window_log}),
                    get,
                    zstd,
                    &format!("{HTML}\nContent-Length: 100020"),
                    "zstd",
                );
            }
        }
    }

    #[test]
    fn the_head_names_the_coding() {
        let plugin = entry("zstd", json!({"vary": true})).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\nAccept-Encoding: zstd");
        case.respond(200, &format!("{HTML}\nVary: origin, accept-encoding\nContent-Length: 50"));
        case.filter(&plugin, &[b"x"]);
        assert_eq!(case.answered("ETag"), "W/\"e\"");
        assert_eq!(case.answered("Content-Length"), "");
        assert_eq!(case.answered("Vary"), "origin, accept-encoding");
        case.request("GET / HTTP/1.1\nHost: h");
        case.respond(200, HTML);
        case.filter(&plugin, &[b"x"]);
        assert_eq!(
            (case.answered("Vary"), case.answered("ETag")),
            ("Accept-Encoding".into(), "\"e\"".into())
        );
    }

    fn compressor(comp_level: i32, window_log: u32) -> State {
        let conf = json!({"types": "*", "min_length": 1, "http_version": 1.1, "comp_level": comp_level, "window_log": window_log});
        serde_json::from_value::<Zstd>(conf).unwrap().compressor().unwrap()
    }

    #[test]
    fn pieces_of_unknown_length_are_readable_at_once() {
        let mut state = compressor(3, 19);
        let (mut bytes, mut out) = (Vec::new(), [0; 8]);
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
            assert!(plain(&bytes).ends_with(event.as_bytes()));
        }
    }

    /// The figures that the reference tells.
    #[test]
    fn memory_is_bounded_by_the_settings() {
        let check = |comp_level: i32, window_log: u32, most: usize| {
            let mut state = compressor(comp_level, window_log);
            state.step(b"x", Ask::Flush, &mut [0; 1024]).unwrap();
            let bytes = state.0.sizeof();
            assert!(bytes <= most && bytes > most / 2, "{comp_level} {window_log}: {bytes}");
        };
        check(3, 19, 2 << 20);
        check(19, 23, 96 << 20);
    }

    #[test]
    fn wrong_configurations_are_refused() {
        for conf in [
            json!({"types": []}),
            json!({"min_length": 0}),
            json!({"comp_level": 0}),
            json!({"comp_level": 20}),
            json!({"window_log": 9}),
            json!({"window_log": 24}),
        ] {
            assert_ne!(refusal("zstd", &conf), "", "{conf}");
        }
    }
}
