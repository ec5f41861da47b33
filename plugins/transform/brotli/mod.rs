//! `brotli`: responses are compressed on their way to the client (RFC 7932).

use std::sync::Arc;

use brotli::enc::StandardAlloc;
use brotli::enc::encode::{BrotliEncoderOperation, BrotliEncoderParameter, BrotliEncoderStateStruct};
use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{
    BodyFilter, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep,
};
use sigma_schema::described::schema_of;

use crate::shared::encoder::{self, Ask, Compressor, Did};
use sigma_plugin_kit::budget::Budget;
use sigma_plugin_kit::coding::{self, Which};

/// The plugin.
pub(crate) static BROTLI: Descriptor = Descriptor {
    name: "brotli",
    priority: 996,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::HeaderFilter, Phase::BodyFilter]),
    attributes: Some(schema_of::<Budget>),
    build: |build| Ok(Arc::new(Brotli { budget: Budget::of(build)?, ..build.config()? })),
    ..Descriptor::of::<Brotli>()
};

/// Compresses responses with Brotli.
///
/// It compresses responses of a listed type without a content coding, for clients that accept `br` or `*`. It does not
/// compress ranges and responses with `Cache-Control: no-transform`. Bodies of unknown length are flushed piece by
/// piece, so that events arrive when they are sent. With `zstd` or `gzip` on the same route the client's preferred
/// coding is used, on a tie the first of `zstd`, `brotli`, `gzip`.
///
/// Each response needs memory for a compressor until it ends. With an `lgwin` of 19, this is about 1 MiB at levels 0
/// and 1, 3 MiB at 4, 8 MiB at 6 and 40 MiB at 9. A larger window adds twice its size; a small one (16 or less) saves
/// nothing: 33 MiB at level 5. Above level 9 a megabyte can take a second of the worker's time, and compression of one
/// block (`lgblock`) is not interrupted. Such levels are for files compressed in advance (`precompressed` of
/// `static-files`). All compressors of one worker, with `zstd` and `gzip`, take at most 256 MiB, or
/// `plugin_attr.brotli.worker_bytes`; a response beyond that is not compressed.
#[derive(Deserialize, JsonSchema)]
struct Brotli {
    /// Type of the content: 0 any, 1 text, 2 fonts.
    #[schemars(range(min = 0, max = 2), extend("default" = 0))]
    mode: u32,
    /// Compression level from 0 (fast) to 11 (small).
    #[schemars(range(min = 0, max = 11), extend("default" = 6))]
    comp_level: u32,
    /// Binary logarithm of the window in bytes: 10 to 24, or 0 for the smallest. A larger window makes responses
    /// smaller and needs more memory.
    #[schemars(with = "i64", extend("enum" = [0, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24], "default" = 19))]
    lgwin: u32,
    /// Binary logarithm of the bytes that are compressed at a time: 16 to 24, or 0 for the default of the level.
    #[schemars(with = "i64", extend("enum" = [0, 16, 17, 18, 19, 20, 21, 22, 23, 24], "default" = 0))]
    lgblock: u32,
    #[serde(flatten)]
    which: Which,
    #[serde(skip)]
    budget: Budget,
}

impl Configuration for Brotli {}

const TOKEN: &str = "br";

impl Plugin for Brotli {
    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        encoder::offer(self, &self.which, TOKEN, ctx);
        ResponseStep::Next
    }

    fn body_filter(&self, ctx: &mut Context, env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let token = coding::chosen(self, ctx)?;
        let share = encoder::share(env, self.bytes(), self.budget)?;
        Some(encoder::encode(self.compressor(), share, token, ctx))
    }
}

impl Brotli {
    /// Returns the approximate size of a compressor; measured, and rounded up.
    fn bytes(&self) -> usize {
        const MIB: usize = 1 << 20;
        let window = if self.lgwin == 0 { 0 } else { 2 << self.lgwin };
        match (self.comp_level, self.lgwin) {
            (0 | 1, _) => MIB,
            (2..=4, _) => 2 * MIB + window,
            (5..=8, 0..=16) => 33 * MIB,
            (5..=8, _) => 7 * MIB + window,
            _ => 39 * MIB + window,
        }
    }

    fn compressor(&self) -> State {
        let mut state = BrotliEncoderStateStruct::new(StandardAlloc::default());
        for (parameter, value) in [
            (BrotliEncoderParameter::BROTLI_PARAM_MODE, self.mode),
            (BrotliEncoderParameter::BROTLI_PARAM_QUALITY, self.comp_level),
            (BrotliEncoderParameter::BROTLI_PARAM_LGWIN, self.lgwin),
            (BrotliEncoderParameter::BROTLI_PARAM_LGBLOCK, self.lgblock),
        ] {
            // Refused only while a body is compressed; values are in the range of the schema.
            state.set_parameter(parameter, value);
        }
        State(state)
    }
}

struct State(BrotliEncoderStateStruct<StandardAlloc>);

impl Compressor for State {
    fn step(&mut self, data: &[u8], ask: Ask, out: &mut [u8]) -> Option<Did> {
        let operation = match ask {
            Ask::Take => BrotliEncoderOperation::BROTLI_OPERATION_PROCESS,
            Ask::Flush => BrotliEncoderOperation::BROTLI_OPERATION_FLUSH,
            Ask::Finish => BrotliEncoderOperation::BROTLI_OPERATION_FINISH,
        };
        let (mut left, mut taken, mut room, mut made) = (data.len(), 0, out.len(), 0);
        let works = self.0.compress_stream(
            operation,
            &mut left,
            data,
            &mut taken,
            &mut room,
            out,
            &mut made,
            &mut None,
            &mut |_, _, _, _| (),
        );
        let is_done = match ask {
            Ask::Take | Ask::Flush => left == 0 && !self.0.has_more_output(),
            Ask::Finish => self.0.is_finished(),
        };
        works.then_some(Did { taken, made, is_done })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::testing::{Case, entry, refusal};
    use serde_json::{Value, json};

    const HTML: &str = "Content-Type: text/html; charset=utf-8\nETag: \"e\"";

    fn plain(encoded: &[u8]) -> Vec<u8> {
        let mut plain = Vec::new();
        // An unfinished text is decoded as far as it goes.
        let _ = brotli::Decompressor::new(encoded, 4096).read_to_end(&mut plain);
        plain
    }

    #[test]
    fn clients_get_the_coding_they_accept() {
        let body = [&b"a long enough body, "[..], &[b'x'; 100_000]];
        let check = |conf: Value, line: &str, accept: &str, status: u16, fields: &str, expected: &str| {
            let plugin = entry("brotli", conf.clone()).unwrap();
            let mut case = Case::new(&format!("{line}\nHost: h\n{accept}"));
            case.respond(status, fields);
            let passed = case.filter(&plugin, &body);
            let coding = case.answered("Content-Encoding");
            assert_eq!(coding, expected, "{conf} {line} {accept} {status} {fields}");
            let decoded = if coding == "br" && !line.starts_with("HEAD") { plain(&passed) } else { passed };
            assert!(decoded == body.concat(), "{conf} {line} {accept} {status} {fields}");
        };
        let (get, br, none) = ("GET / HTTP/1.1", "Accept-Encoding: gzip, br;q=0.5", || json!({}));
        check(none(), get, br, 200, HTML, "br");
        check(none(), get, br, 500, HTML, "br");
        check(none(), "HEAD / HTTP/1.1", br, 200, HTML, "br");
        check(none(), get, "Accept-Encoding: *", 200, HTML, "br");
        check(none(), get, "", 200, HTML, "");
        check(none(), get, "Accept-Encoding: gzip", 200, HTML, "");
        check(none(), get, "Accept-Encoding: br;q=0, *", 200, HTML, "");
        check(none(), get, "Accept-Encoding: br;q=0.0", 200, HTML, "");
        check(none(), get, br, 200, &format!("{HTML}\nContent-Length: 19"), "");
        check(none(), get, br, 200, &format!("{HTML}\nContent-Length: 20"), "br");
        check(none(), get, br, 200, "Content-Type: text/plain", "");
        check(none(), get, br, 200, "", "");
        check(none(), get, br, 206, HTML, "");
        check(none(), get, br, 200, &format!("{HTML}\nCache-Control: no-transform"), "");
        check(none(), get, br, 200, &format!("{HTML}\nContent-Encoding: gzip"), "gzip");
        check(json!({"types": "*"}), get, br, 200, "Content-Type: a/b", "br");
        check(none(), "GET / HTTP/1.0", br, 200, HTML, "");
        check(json!({"http_version": 1.0}), "GET / HTTP/1.0", br, 200, HTML, "br");
        for level in 0..=11 {
            for fields in [HTML.to_owned(), format!("{HTML}\nContent-Length: 100020")] {
                check(json!({"comp_level": level, "lgwin": 10, "mode": 1}), get, br, 200, &fields, "br");
            }
        }
        check(json!({"lgwin": 0, "lgblock": 16, "mode": 2}), get, br, 200, HTML, "br");
    }

    #[test]
    fn the_head_names_the_coding() {
        let plugin = entry("brotli", json!({"vary": true})).unwrap();
        let mut case = Case::new("GET / HTTP/1.1\nHost: h\nAccept-Encoding: br");
        case.respond(200, &format!("{HTML}\nVary: Origin\nContent-Length: 50\nLast-Modified: x"));
        case.filter(&plugin, &[b"x"]);
        assert_eq!(case.answered("ETag"), "W/\"e\"");
        assert_eq!(case.answered("Content-Length"), "");
        assert_eq!(case.answered("Last-Modified"), "x");
        assert_eq!(case.answered("Vary"), "Origin, Accept-Encoding");
    }

    #[test]
    fn pieces_of_unknown_length_are_readable_at_once() {
        for comp_level in [0, 1, 6, 10] {
            let conf = json!({"types": "*", "min_length": 1, "http_version": 1.1, "mode": 0, "comp_level": comp_level, "lgwin": 19, "lgblock": 0});
            let mut state = serde_json::from_value::<Brotli>(conf).unwrap().compressor();
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
                assert!(plain(&bytes).ends_with(event.as_bytes()), "{comp_level}");
            }
        }
    }

    #[test]
    fn wrong_configurations_are_refused() {
        for conf in [
            json!({"types": []}),
            json!({"min_length": 0}),
            json!({"mode": 3}),
            json!({"comp_level": 12}),
            json!({"lgwin": 9}),
            json!({"lgwin": 25}),
            json!({"lgblock": 15}),
            json!({"http_version": 2}),
        ] {
            assert_ne!(refusal("brotli", &conf), "", "{conf}");
        }
        for (field, value) in [("lgwin", 9), ("lgwin", 25), ("lgblock", 15)] {
            let expected = format!("property \"{field}\" validation failed: matches none of the enum values");
            crate::testing::assert_refusal("brotli", &json!({field: value}), &expected);
        }
    }
}
