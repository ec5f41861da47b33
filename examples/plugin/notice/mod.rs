//! `notice`: a service's notice below every page.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::Deserialize;
use sigma_http::{BodyLength, Chunk, HeaderId, Headers};
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::outbound::Service;
use sigma_plugin::{
    BodyFilter, Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Pieces, Plugin, Slot, Step,
    Transform,
};

/// The description of the plugin for the gateway, its schemas and its reference.
pub static NOTICE: Descriptor = Descriptor {
    name: "notice",
    priority: 2990,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::BodyFilter]),
    upstreams: Some(|conf| Config::deserialize(conf).iter().map(Config::upstream).collect()),
    build: |build| Ok(Arc::new(Notice::new(build)?)),
    ..Descriptor::of::<Config>()
};

/// Puts a service's notice below every page.
///
/// The service is asked while the request waits. A page goes out without the notice where the service
/// gives none.
#[derive(Deserialize, JsonSchema)]
struct Config {
    /// The URL of the service.
    service: Service,
    /// Milliseconds to wait for its response.
    #[schemars(range(min = 1, max = 60_000), extend("default" = 500))]
    timeout: u64,
    /// Media types of the pages.
    #[schemars(extend("default" = ["text/html"]))]
    types: Vec<String>,
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        match self.types.iter().find(|name| !name.contains('/')) {
            Some(name) => Err(format!("types: `{name}` is not a media type such as text/html")),
            None => Ok(()),
        }
    }
}

impl Config {
    fn upstream(&self) -> InlineUpstream {
        InlineUpstream { name: "service".to_owned(), upstream: self.service.upstream(true, self.timeout) }
    }
}

/// An instance: one configuration, prepared. All workers share it and nothing changes it.
struct Notice {
    config: Config,
    /// The key of the service among the upstreams.
    upstream: String,
}

impl Notice {
    fn new(build: &Build<'_>) -> Result<Notice, String> {
        Ok(Notice { config: build.config()?, upstream: build.upstream_key("service") })
    }

    fn is_page(&self, ctx: &Context) -> bool {
        let said = ctx.response.headers.get(HeaderId::ContentType).unwrap_or_default();
        self.config.types.iter().any(|name| said.starts_with(name.as_bytes()))
            && ctx.response.headers.find(b"content-encoding").is_none()
    }
}

impl Plugin for Notice {
    fn access(&self, ctx: &mut Context, env: &Env<'_>) -> Step {
        let call = self.config.service.get(&self.upstream, ctx, self.config.timeout);
        let slot = Slot::from(self);
        Step::wait(env.outbound.call(call), move |answer, ctx, _| {
            if let Some(answer) = answer.ok().filter(|answer| answer.status == 200) {
                ctx.keep(slot, Below(answer.body));
            }
            Step::Next
        })
    }

    fn body_filter(&self, ctx: &mut Context, _: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        let below: Below = ctx.take_kept(self)?;
        self.is_page(ctx).then(|| below.filter())
    }
}

/// Puts bytes below a body.
struct Below(Vec<u8>);

impl Transform for Below {
    fn length(&self, page: BodyLength) -> BodyLength {
        match page {
            BodyLength::Known(bytes) => BodyLength::Known(bytes + self.0.len() as u64),
            other => other,
        }
    }

    fn data(&mut self, _: &mut Context, data: Chunk, out: &mut Pieces) {
        out.piece(data);
    }

    fn end(&mut self, _: &mut Context, _: Option<&mut Headers>, out: &mut Pieces) {
        out.bytes(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use serde_json::{Value, json};
    use sigma_plugin::outbound::{Call, Calling, Outbound, ServiceResponse};
    use sigma_plugin::{Consumers, Entry, Kind, Local, Node, Roster};
    use sigma_schema::plugins::{PluginSchemas, PluginScope};

    use super::*;

    fn roster() -> Roster {
        Roster::new([Arc::new(NOTICE) as Arc<dyn Kind>], None)
    }

    /// A service that answers everybody with this status.
    struct Service(u16);

    impl Outbound for Service {
        fn call(&self, call: Call) -> Calling {
            assert_eq!((&*call.host, &call.target[..]), ("bulletin", &b"/today"[..]));
            let answer = ServiceResponse {
                status: self.0,
                body: b"closed today".to_vec(),
                ..ServiceResponse::default()
            };
            Box::pin(std::future::ready(Ok(answer)))
        }
    }

    /// Returns the length of the notice below a page of ten bytes; None without a notice.
    fn below(service: &Service, content_type: &str) -> Option<BodyLength> {
        let conf = json!({"service": "http://bulletin/today"});
        let (node, local, consumers) =
            (Arc::new(Node::default()), Rc::new(Local::default()), Consumers::default());
        let entry: Entry = roster()
            .build("notice", &Arc::new(conf.clone()), conf, "/apisix/routes/1", &|_: &str| None, &node)
            .unwrap();
        let env = Env { outbound: service, ..Env::new(&node, &local, &consumers) };
        let mut ctx = Context::default();
        let step = entry.plugin.access(&mut ctx, &env);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        assert!(runtime.block_on(step.settled(&mut ctx, &env, Vec::new())).unwrap().is_none());
        ctx.response.start(200);
        ctx.response.headers.append("Content-Type", content_type.as_bytes());
        let filter = entry.plugin.body_filter(&mut ctx, &env)?;
        Some(filter.length(BodyLength::Known(10)))
    }

    #[test]
    fn pages_get_the_notice_of_the_service() {
        assert_eq!(below(&Service(200), "text/html; charset=utf-8"), Some(BodyLength::Known(22)));
        assert_eq!(below(&Service(200), "image/png"), None);
        assert_eq!(below(&Service(503), "text/html"), None);
    }

    #[test]
    fn the_service_is_an_upstream() {
        let conf = json!({"service": "http://bulletin:8080/today", "timeout": 100});
        let upstreams = roster().upstreams("notice", PluginScope::Http, conf);
        assert_eq!(upstreams[0].upstream["nodes"][0]["port"], 8080);
        assert_eq!(upstreams[0].upstream["timeout"]["read"], 0.1);
    }

    #[test]
    fn mistakes_are_told() {
        let refusal =
            |conf: Value| roster().check("notice", PluginScope::Http, &conf).unwrap_err().to_string();
        let url = "http://bulletin";
        assert!(refusal(json!({})).contains("property \"service\" is required"));
        assert!(refusal(json!({"service": "bulletin"})).contains("`bulletin` has no scheme"));
        assert!(refusal(json!({"service": url, "timeout": 0})).contains("expected 0 to be at least 1"));
        assert!(refusal(json!({"service": url, "types": ["html"]})).contains("`html` is not a media type"));
    }
}
