//! `served-by`: sets a response field, the smallest plugin that does something.

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_plugin::{Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, ResponseStep};

/// Descriptor of the plugin.
pub static SERVED_BY: Descriptor = Descriptor {
    name: "served-by",
    priority: 890,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::HeaderFilter]),
    ..Descriptor::itself::<ServedBy>()
};

/// Sets the response field `X-Served-By`.
#[derive(Deserialize, JsonSchema)]
struct ServedBy {
    /// Value of the field.
    name: String,
}

impl Configuration for ServedBy {}

impl Plugin for ServedBy {
    fn header_filter(&self, ctx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        ctx.response.headers.replace("X-Served-By", self.name.as_bytes());
        ResponseStep::Next
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use serde_json::json;
    use sigma_plugin::{Consumers, Kind, Local, Node, Roster};

    use super::*;

    #[test]
    fn the_response_field_is_set() {
        let roster = Roster::new([Arc::new(SERVED_BY) as Arc<dyn Kind>], None);
        let (node, local, consumers) =
            (Arc::new(Node::default()), Rc::new(Local::default()), Consumers::default());
        let conf = json!({"name": "berlin-1"});
        let entry = roster
            .build("served-by", &Arc::new(conf.clone()), conf, "/apisix/routes/1", &|_: &str| None, &node)
            .unwrap();
        let mut ctx = Context::default();
        ctx.response.start(200);
        let step = entry.plugin.header_filter(&mut ctx, &Env::new(&node, &local, &consumers));
        assert!(matches!(step, ResponseStep::Next));
        assert_eq!(ctx.response.headers.find(b"X-Served-By"), Some(&b"berlin-1"[..]));
    }
}
