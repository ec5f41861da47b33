//! The rule for responses whose body a plugin changes: which of them may be changed, and which fields are removed
//! because they describe the earlier bytes.
//!
//! A plugin that encodes the body (`gzip`, `brotli`, `zstd`) acts on its own: it leaves responses alone that the node
//! forbids to change. A plugin that replaces content follows the operator's rule for the route, often to hide something,
//! so `no-transform` does not stop it. It asks nodes for whole content. Every plugin leaves an unrequested part (206)
//! unchanged.

use sigma_http::header::list_items;
use sigma_http::range::content_range;
use sigma_http::{HeaderId, Headers};
use sigma_plugin::Context;

/// Digests of a body (RFC 9530, and its predecessors in RFC 3230 and RFC 1864).
const DIGESTS: [&str; 4] = ["Content-Digest", "Repr-Digest", "Digest", "Content-MD5"];

/// Other fields that describe one body only.
const DESCRIPTIONS: [&str; 5] =
    ["Content-Length", "Content-Encoding", "Accept-Ranges", "Last-Modified", "ETag"];

/// Returns true if a field describes one body, and not its replacement.
pub fn describes_body(name: &str) -> bool {
    DESCRIPTIONS.iter().chain(&DIGESTS).any(|known| known.eq_ignore_ascii_case(name))
}

/// Returns true if a response may have content that a plugin changes: a 204, 205 or 304 has no content (RFC 9110
/// §15.3.6).
pub fn has_content(ctx: &Context) -> bool {
    !matches!(ctx.response.status, 204 | 205 | 304)
}

/// Returns true for a part of the node's content: no plugin changes it, because its range counts bytes of the whole. A
/// part with all bytes is no longer one: it becomes a 200 (RFC 9110 §15.3.7).
pub fn is_part(ctx: &mut Context) -> bool {
    let range = ctx.response.headers.find(b"Content-Range");
    // The range of a 416 does not describe its content.
    if ctx.response.status == 416 || (ctx.response.status != 206 && range.is_none()) {
        return false;
    }
    let is_all = range.and_then(content_range).is_some_and(|(part, size)| part.length() == size);
    if is_all {
        become_whole(ctx);
    }
    !is_all
}

/// Turns a partial response into a whole one.
fn become_whole(ctx: &mut Context) {
    if ctx.response.status == 206 {
        ctx.response.status = 200;
    }
    ctx.response.headers.remove_name(b"Content-Range");
}

/// Gives a 304 the tag that the encoded response had, if the client has that one. It validates with the weak form of
/// the node's tag, so a strong one in the response would name another representation (RFC 9110 §15.4.5). Returns true
/// for a 304.
pub fn weaken_not_modified(ctx: &mut Context) -> bool {
    if ctx.response.status != 304 {
        return false;
    }
    let Some(tag) = ctx.response.headers.find(b"ETag").filter(|tag| is_quoted(tag)).map(<[u8]>::to_vec)
    else {
        return true;
    };
    let lines = ctx.request.headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"If-None-Match"));
    let held: Vec<&[u8]> = lines.flat_map(|(_, value)| list_items(value)).collect();
    let is_weak = |item: &&[u8]| item.strip_prefix(b"W/").is_some_and(|rest| rest == tag);
    if held.iter().any(is_weak) && !held.contains(&&tag[..]) {
        ctx.response.headers.remove_name(b"ETag");
        ctx.response.headers.append_parts(b"ETag", &[b"W/", &tag]);
    }
    true
}

/// Returns true if a body may be encoded: the status has one, it is not a part of a larger one (a range counts bytes
/// of the whole), and the node does not forbid it (RFC 9111 §5.2.2.6).
pub fn may_be_encoded(ctx: &Context) -> bool {
    let headers = &ctx.response.headers;
    let lines = headers.iter().filter(|(name, _)| name.eq_ignore_ascii_case(b"Cache-Control"));
    let forbids = |directive: &[u8]| directive.eq_ignore_ascii_case(b"no-transform");
    !matches!(ctx.response.status, 204 | 206 | 304)
        && headers.find(b"Content-Range").is_none()
        && !lines.flat_map(|(_, value)| list_items(value)).any(forbids)
}

/// Changes the head for a response in this coding; returns true if its length was not known.
pub fn encode_head(headers: &mut Headers, token: &str) -> bool {
    let is_streamed = !headers.has(HeaderId::ContentLength);
    for name in ["Content-Encoding", "Accept-Ranges", "Content-Length"] {
        headers.remove_name(name.as_bytes());
    }
    remove_digests(headers);
    headers.append("Content-Encoding", token.as_bytes());
    // The bytes differ, so only weak comparison can hold (RFC 9110 §8.8.1). An invalid tag is removed.
    if let Some(tag) = headers.find(b"ETag").filter(|tag| !tag.starts_with(b"W/")).map(<[u8]>::to_vec) {
        headers.remove_name(b"ETag");
        if is_quoted(&tag) {
            headers.append_parts(b"ETag", &[b"W/", &tag]);
        }
    }
    is_streamed
}

/// Changes the head for other content than the node sent.
pub fn change_head(headers: &mut Headers) {
    DESCRIPTIONS.iter().for_each(|name| headers.remove_name(name.as_bytes()));
    remove_digests(headers);
}

/// Turns the response into other content that does not depend on the node's: a partial response becomes a whole one.
pub fn replace_content(ctx: &mut Context) {
    change_head(&mut ctx.response.headers);
    become_whole(ctx);
}

/// Replaces the body of a request; the gateway sets its length. Digests of other bytes are removed.
pub fn replace_request_body(ctx: &mut Context, body: Vec<u8>) {
    if ctx.body.as_ref() != Some(&body) {
        remove_digests(&mut ctx.request.headers);
    }
    ctx.body = Some(body);
}

/// Removes the digests of earlier bytes, from a head or from trailers.
pub fn remove_digests(fields: &mut Headers) {
    DIGESTS.iter().for_each(|name| fields.remove_name(name.as_bytes()));
}

fn is_quoted(tag: &[u8]) -> bool {
    matches!(tag, [b'"', inner @ .., b'"'] if !inner.contains(&b'"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &str) -> Headers {
        let mut headers = Headers::default();
        for (name, value) in lines.lines().filter_map(|line| line.split_once(": ")) {
            headers.append(name, value.as_bytes());
        }
        headers
    }

    fn written(headers: &Headers) -> String {
        let mut out = Vec::new();
        headers.write_to(&mut out);
        String::from_utf8(out).unwrap().replace("\r\n", "|")
    }

    #[test]
    fn tags_become_weak() {
        let check = |tag: &str, expected: Option<&str>| {
            let mut headers = headers(&format!("ETag: {tag}"));
            encode_head(&mut headers, "br");
            assert_eq!(headers.find(b"ETag"), expected.map(str::as_bytes), "{tag}");
        };
        check("\"x\"", Some("W/\"x\""));
        check("W/\"x\"", Some("W/\"x\""));
        check("x", None);
        check("\"", None);
        check("\"x\"y\"", None);
    }

    #[test]
    fn digests_of_earlier_bytes_are_removed() {
        let check = |fields: &str, encoded: &str, changed: &str| {
            let (mut first, mut second) = (headers(fields), headers(fields));
            encode_head(&mut first, "br");
            change_head(&mut second);
            let expected = (format!("{encoded}Content-Encoding: br|"), changed.to_owned());
            assert_eq!((written(&first), written(&second)), expected, "{fields}");
        };
        check("", "", "");
        check("Content-Digest: sha-256=:x:", "", "");
        check("Repr-Digest: sha-256=:x:", "", "");
        check("content-md5: x", "", "");
        check("DIGEST: sha-256=x\nDigest: md5=y", "", "");
        check(
            "Want-Content-Digest: sha-256=1",
            "Want-Content-Digest: sha-256=1|",
            "Want-Content-Digest: sha-256=1|",
        );
        check("X-Digest: 1", "X-Digest: 1|", "X-Digest: 1|");
        check("Content-Length: 3\nAccept-Ranges: bytes", "", "");
        check("Content-Encoding: identity", "", "");
        check("Last-Modified: x", "Last-Modified: x|", "");
        check("Content-Language: de", "Content-Language: de|", "Content-Language: de|");
    }

    #[test]
    fn digests_of_a_replaced_request_body_are_removed() {
        let mut ctx = Context::default();
        ctx.request.headers = headers("Content-Digest: sha-256=:x:\nContent-MD5: y\nX-A: z");
        ctx.body = Some(b"a".to_vec());
        replace_request_body(&mut ctx, b"a".to_vec());
        assert_eq!(written(&ctx.request.headers), "Content-Digest: sha-256=:x:|Content-MD5: y|X-A: z|");
        replace_request_body(&mut ctx, b"b".to_vec());
        assert_eq!((written(&ctx.request.headers), ctx.body), ("X-A: z|".to_owned(), Some(b"b".to_vec())));
    }

    #[test]
    fn a_304_has_the_tag_that_the_client_has() {
        let check = |status: u16, tag: &str, held: &str, expected: &str| {
            let mut ctx = Context::default();
            ctx.response.start(status);
            ctx.response.headers = headers(&format!("ETag: {tag}"));
            ctx.request.headers = headers(held);
            assert_eq!(weaken_not_modified(&mut ctx), status == 304);
            assert_eq!(
                ctx.response.headers.find(b"ETag"),
                Some(expected.as_bytes()),
                "{status} {tag} {held}"
            );
        };
        check(304, "\"x\"", "If-None-Match: W/\"x\"", "W/\"x\"");
        check(304, "\"x\"", "If-None-Match: \"y\", W/\"x\"", "W/\"x\"");
        check(304, "\"x\"", "If-None-Match: \"y\"\nif-none-match: W/\"x\"", "W/\"x\"");
        check(304, "\"x\"", "If-None-Match: \"x\"", "\"x\"");
        check(304, "\"x\"", "If-None-Match: W/\"x\", \"x\"", "\"x\"");
        check(304, "\"x\"", "If-None-Match: *", "\"x\"");
        check(304, "\"x\"", "", "\"x\"");
        check(304, "W/\"x\"", "If-None-Match: W/\"x\"", "W/\"x\"");
        check(304, "x", "If-None-Match: W/x", "x");
        check(200, "\"x\"", "If-None-Match: W/\"x\"", "\"x\"");
    }

    #[test]
    fn parts_stay_and_whole_parts_become_whole() {
        let check = |status: u16, fields: &str, part: bool, expected: &str| {
            let mut ctx = Context::default();
            ctx.response.start(status);
            ctx.response.headers = headers(fields);
            assert_eq!(is_part(&mut ctx), part, "{status} {fields}");
            let shown = format!("{} {}", ctx.response.status, written(&ctx.response.headers));
            assert_eq!(shown, expected, "{status} {fields}");
        };
        check(200, "X-A: b", false, "200 X-A: b|");
        check(206, "Content-Range: bytes 0-4/11", true, "206 Content-Range: bytes 0-4/11|");
        check(206, "Content-Range: bytes 5-10/11", true, "206 Content-Range: bytes 5-10/11|");
        check(206, "Content-Range: bytes 0-10/*", true, "206 Content-Range: bytes 0-10/*|");
        check(206, "Content-Range: lines 0-10/11", true, "206 Content-Range: lines 0-10/11|");
        check(206, "", true, "206 ");
        let multipart = "Content-Type: multipart/byteranges; boundary=x";
        check(206, multipart, true, &format!("206 {multipart}|"));
        check(206, "Content-Range: bytes 0-10/11", false, "200 ");
        check(206, "content-range: bytes 0-0/1", false, "200 ");
        check(200, "Content-Range: bytes 0-4/11", true, "200 Content-Range: bytes 0-4/11|");
        check(200, "Content-Range: bytes 0-10/11", false, "200 ");
        check(416, "Content-Range: bytes */11", false, "416 Content-Range: bytes */11|");
        check(204, "", false, "204 ");
    }

    #[test]
    fn parts_and_what_must_not_change_are_not_encoded() {
        let check = |status: u16, fields: &str, expected: bool| {
            let mut ctx = Context::default();
            ctx.response.start(status);
            ctx.response.headers = headers(fields);
            assert_eq!(may_be_encoded(&ctx), expected, "{status} {fields}");
        };
        check(200, "", true);
        check(404, "Cache-Control: no-cache, private", true);
        check(200, "Cache-Control: x-no-transform", true);
        check(200, "X-Cache-Control: no-transform", true);
        check(204, "", false);
        check(206, "", false);
        check(304, "", false);
        check(200, "Content-Range: bytes 0-1/2", false);
        check(200, "Cache-Control: no-transform", false);
        check(200, "cache-control: max-age=1,No-Transform", false);
        check(200, "Cache-Control: no-cache\nCache-Control: no-transform", false);
    }
}
