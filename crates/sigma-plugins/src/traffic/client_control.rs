//! `client-control`: how large the body of a request may be.

use std::task::{self, Poll, ready};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use sigma_config::Problem;
use sigma_http::{BodyLength, Fault, FaultKind, Frame, HeaderId};
use sigma_plugin::{
    BodyFilter, Configuration, Context, Descriptor, Env, Frames, Phase, PhaseSet, Plugin, Step,
};

/// The plugin.
pub(crate) static CLIENT_CONTROL: Descriptor = Descriptor {
    name: "client-control",
    priority: 22000,
    example: EXAMPLE,
    phases: PhaseSet::of(&[Phase::Rewrite, Phase::RequestFilter]),
    warnings: Some(|_, conf| warnings(conf)),
    ..Descriptor::itself::<ClientControl>()
};

const EXAMPLE: &str = r#"```yaml
listeners: ["127.0.0.1:9080"]
routes:
  - uri: /*
    plugins: { client-control: { max_body_size: 5 } }
    upstream: http://127.0.0.1:9000
```

```console
$ curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:9080/orders -d hello
200
$ curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:9080/orders -d hello!
413
$ curl -s -o /dev/null -w '%{http_code}\n' http://127.0.0.1:9080/orders -H 'Transfer-Encoding: chunked' -d hello!
413
```
"#;

/// Limits the size of request bodies.
///
/// A request that says a larger size is answered 413 before anything else is done with it. A body that does
/// not say its size is counted while it passes: the node never gets a byte over the limit, nor the end of the
/// message. The limit of the whole gateway, `limits.request_body_bytes`, holds besides; this one can be
/// smaller only.
#[derive(Deserialize, JsonSchema)]
struct ClientControl {
    /// Largest body, in bytes. 0, or nothing, sets no limit.
    max_body_size: Option<u64>,
}

impl Configuration for ClientControl {}

fn warnings(conf: &Value) -> Vec<Problem> {
    match conf.get("max_body_size") {
        Some(Value::Number(size)) if size.as_u64() == Some(0) => {
            let message = "`max_body_size` of 0 is without effect: it does not lift the limit of the gateway";
            let hint = "set `limits.request_body_bytes` to the most that any route takes, and `max_body_size` \
                where less is wanted";
            vec![Problem::new("max_body_size", "no_effect", message).hint(hint)]
        }
        _ => Vec::new(),
    }
}

const TOO_LARGE: Fault = Fault::new(FaultKind::RequestBodyTooLarge, "the request body is over max_body_size");

impl ClientControl {
    fn limit(&self) -> Option<u64> {
        self.max_body_size.filter(|limit| *limit > 0)
    }
}

impl Plugin for ClientControl {
    fn rewrite(&self, ctx: &mut Context, _env: &Env<'_>) -> Step {
        let Some(limit) = self.limit() else { return Step::Next };
        let said = ctx.request.headers.get(HeaderId::ContentLength);
        let said = said.and_then(|text| std::str::from_utf8(text).ok()?.parse::<u64>().ok());
        if said.is_some_and(|said| said > limit) { Step::status(413) } else { Step::Next }
    }

    fn request_filter(&self, _cx: &mut Context, _env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        Some(Box::new(Counted { left: self.limit()? }))
    }
}

/// Lets so many bytes through.
struct Counted {
    left: u64,
}

impl BodyFilter for Counted {
    fn length(&self, length: BodyLength) -> BodyLength {
        length
    }

    fn poll_frame(
        &mut self,
        input: &mut dyn Frames,
        ctx: &mut Context,
        task: &mut task::Context<'_>,
    ) -> Poll<Result<Frame, Fault>> {
        let frame = ready!(input.poll_frame(ctx, task))?;
        if let Frame::Data(data) = &frame {
            match self.left.checked_sub(data.len() as u64) {
                Some(left) => self.left = left,
                None => return Poll::Ready(Err(TOO_LARGE)),
            }
        }
        Poll::Ready(Ok(frame))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use sigma_config::plugins::PluginScope;
    use sigma_http::Chunk;

    use super::*;
    use crate::testing::{Case, Given, assert_refusal, entry, summary, warned};

    #[test]
    fn sizes_that_are_said() {
        let check = |conf: Value, fields: &str, expected: &str| {
            let mut case = Case::new(&format!("POST / HTTP/1.1\nHost: h\n{fields}"));
            let reply = case.run(&entry("client-control", conf.clone()).unwrap(), Phase::Rewrite);
            assert_eq!(summary(reply.as_ref()), expected, "{conf} {fields}");
        };
        check(json!({"max_body_size": 5}), "Content-Length: 5", "passed");
        check(json!({"max_body_size": 5}), "Content-Length: 6", "413");
        check(json!({"max_body_size": 5}), "Transfer-Encoding: chunked", "passed");
        check(json!({"max_body_size": 0}), "Content-Length: 6", "passed");
        check(json!({}), "Content-Length: 6", "passed");
    }

    /// How many bytes pass of pieces of these lengths, and whether the body ends.
    fn passed(conf: &Value, pieces: &[usize]) -> (usize, bool) {
        let entry = entry("client-control", conf.clone()).unwrap();
        let mut case = Case::new("POST / HTTP/1.1\nHost: h");
        let env = Env::new(&case.node, &case.local, &case.consumers);
        let Some(mut filter) = entry.plugin.request_filter(&mut case.ctx, &env) else {
            return (pieces.iter().sum(), true);
        };
        let frames = pieces.iter().map(|length| Frame::Data(Chunk::copy_of(&vec![b'a'; *length])));
        let mut source = Given(frames.collect());
        let (mut task, mut bytes) = (task::Context::from_waker(task::Waker::noop()), 0);
        loop {
            match filter.poll_frame(&mut source, &mut case.ctx, &mut task) {
                Poll::Ready(Ok(Frame::Data(data))) => bytes += data.len(),
                Poll::Ready(Ok(_)) => return (bytes, true),
                Poll::Ready(Err(fault)) => {
                    assert_eq!(fault, TOO_LARGE);
                    return (bytes, false);
                }
                Poll::Pending => unreachable!("the source never waits"),
            }
        }
    }

    #[test]
    fn bodies_are_counted() {
        let limit = json!({"max_body_size": 5});
        assert_eq!(passed(&limit, &[5]), (5, true));
        assert_eq!(passed(&limit, &[2, 3]), (5, true));
        assert_eq!(passed(&limit, &[2, 3, 1]), (5, false));
        assert_eq!(passed(&limit, &[6]), (0, false));
        assert_eq!(passed(&json!({"max_body_size": 0}), &[9, 9]), (18, true));
    }

    #[test]
    fn configurations() {
        let name = "client-control";
        assert_refusal(name, &json!({"max_body_size": -1}), "property \"max_body_size\" validation failed");
        assert_refusal(name, &json!({"max_body_size": "1"}), "expected integer, got string");
        assert_eq!(warned(name, PluginScope::Http, &json!({"max_body_size": 0})), ["max_body_size"]);
        assert!(warned(name, PluginScope::Http, &json!({"max_body_size": 1})).is_empty());
    }
}
