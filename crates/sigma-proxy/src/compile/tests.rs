//! Changes give the same result as a full compilation.

mod golden;

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};
use sigma_config::Config;
use sigma_config::kind::ResourceKey;
use sigma_config::resources;
use sigma_config::settings::UnknownFields;
use sigma_config::stored;
use sigma_config::table::Order;
use sigma_plugin::descriptor::InlineUpstream;
use sigma_plugin::{Descriptor, Kind, Phase, PhaseSet, Plugin, Roster, RunPolicy};
use sigma_schema::plugins::PluginSchemas;
use sigma_upstream::endpoint::{EndpointSet, UpstreamCell};
use sigma_upstream::health::plan::Plan;
use sigma_upstream::identity::EndpointIds;

use super::*;
use crate::snapshot::Target;

struct Nothing;

impl Plugin for Nothing {}

const fn plugin(name: &'static str, priority: i32) -> Descriptor {
    Descriptor {
        name,
        priority,
        phases: PhaseSet::of(&[Phase::Access]),
        schema: || json!({"type": "object"}),
        build: |build| match build.conf.get("bad") {
            Some(reason) => Err(reason.to_string()),
            None => Ok(Arc::new(Nothing)),
        },
        ..Descriptor::BASE
    }
}

static A: Descriptor = plugin("a", 1);
static B: Descriptor = Descriptor { run_policy: RunPolicy::PreferRoute, ..plugin("b", 2) };
static SPLIT: Descriptor = Descriptor {
    upstreams: Some(|conf| {
        let upstream = conf.get("upstream").cloned();
        upstream.map(|upstream| InlineUpstream { name: "0".into(), upstream }).into_iter().collect()
    }),
    ..plugin("split", 3)
};
fn list() -> [Arc<dyn Kind>; 3] {
    [Arc::new(A), Arc::new(B), Arc::new(SPLIT)]
}

/// Upstreams without endpoints.
struct Nowhere;

impl EndpointSource for Nowhere {
    fn identities(&self) -> Arc<EndpointIds> {
        Arc::default()
    }

    fn endpoints(
        &mut self,
        _: &str,
        _: &resources::Upstream,
        _: Option<&sigma_net::tls::ClientTls>,
    ) -> Result<(Arc<UpstreamCell>, Option<Arc<Plan>>), Problem> {
        Ok((Arc::new(UpstreamCell::new(Arc::new(EndpointSet::new(Vec::new(), Arc::default())))), None))
    }
}

/// Compiles without inputs from outside.
pub(crate) fn alone<T>(compile: impl FnOnce(Sources<'_>) -> T) -> T {
    compile(Sources {
        endpoints: &mut Nowhere,
        secrets: &NoSecrets,
        files: &mut NoFiles,
        geography: None,
        ordered: None,
        passphrases: Default::default(),
    })
}

fn compiler() -> Compiler {
    Compiler::new(Arc::new(Roster::new(list(), None)), Arc::default())
}

fn put(config: &mut Config, key: &ResourceKey, value: &Value, order: u64, plugins: &dyn PluginSchemas) {
    let resource = stored::read(key, value, plugins, UnknownFields::Refuse)
        .unwrap_or_else(|error| panic!("{key} {value}: {error}"));
    config.resources.put(resource, order);
}

/// Returns the visible properties of a snapshot: for every route its upstream's nodes and its plugins.
fn shown(snapshot: &Snapshot) -> Vec<String> {
    let names = |chain: &Chain| -> String {
        let entry = |entry: &Arc<sigma_plugin::Entry>| format!("{}{} ", entry.name(), entry.conf);
        chain.entries().iter().map(entry).collect()
    };
    let target = |target: Target| match target {
        Target::Upstream(number) => snapshot
            .upstream(number)
            .map_or("nothing".to_owned(), |upstream| format!("{} {:?}", upstream.key, upstream.config.nodes)),
        other => format!("{other:?}"),
    };
    let route = |route: &Arc<crate::snapshot::Route>| {
        let (own, global) = (names(&route.chain), route.global.as_deref().map(names));
        format!("{:?} {} [{own}] {global:?}", route.facts, target(route.target))
    };
    let mut lines: Vec<String> = snapshot.routes.iter().map(|(_, r)| route(r)).collect();
    for path in ["/1", "/2", "/3", "/4", "/5"] {
        let head = format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n");
        let limits = sigma_http::h1::HeadLimits {
            line_bytes: 99,
            head_bytes: 999,
            fields: 9,
            tolerance: sigma_http::h1::Tolerance::NONE,
        };
        let mut request = sigma_http::RequestHead::default();
        sigma_http::h1::parse_request(head.as_bytes(), &limits, &mut request).unwrap();
        let found = crate::exchange::find(snapshot, &request);
        lines.push(format!("{path} {:?}", found.and_then(|n| snapshot.route(n)).map(|r| &r.facts.id)));
    }
    let keys = snapshot
        .upstream_numbers
        .iter()
        .map(|(key, number)| format!("{key} {:?}", snapshot.upstream(*number).map(|upstream| &upstream.key)));
    lines.extend(keys);
    lines.push(format!("global {}", names(&snapshot.global)));
    for name in ["jack", "rose"] {
        let consumer = snapshot.consumers.get(name);
        let plugins = consumer.map(|c| Chain::new(c.entries.iter().cloned())).map(|chain| names(&chain));
        lines.push(format!("{name} {plugins:?} {:?}", consumer.map(|c| (&c.group_id, c.group_missing))));
    }
    lines.sort();
    lines
}

fn plugins() -> impl Strategy<Value = Value> {
    let upstream = json!({"nodes": {"127.0.0.1:9": 1}});
    prop_oneof![
        Just(json!({})),
        (0..3).prop_map(|n| json!({"a": {"n": n}})),
        (0..3).prop_map(|n| json!({"b": {"n": n}, "a": {"_meta": {"priority": 9}}})),
        Just(json!({"split": {"upstream": upstream}})),
    ]
}

/// A resource to write; None to delete it.
fn write() -> impl Strategy<Value = (ResourceKey, Option<Value>)> {
    let id = || 1..4u8;
    let upstream = |port: u8| json!({"nodes": {format!("127.0.0.1:{port}"): 1}});
    let base = move |kind: u8, n: u8, m: u8, plugins: Value| match kind {
        0 => (format!("routes/{n}"), json!({"uri": format!("/{m}"), "upstream_id": m, "plugins": plugins})),
        1 => (format!("routes/{n}"), json!({"uri": format!("/{m}*"), "service_id": m, "plugins": plugins})),
        2 => (
            format!("routes/{n}"),
            json!({"uri": format!("/{m}"), "upstream": upstream(m), "plugin_config_id": m}),
        ),
        3 => (format!("services/{n}"), json!({"upstream": upstream(m), "plugins": plugins})),
        4 => (format!("upstreams/{n}"), upstream(m)),
        5 => (format!("plugin_configs/{n}"), json!({"plugins": plugins})),
        6 => (format!("global_rules/{n}"), json!({"plugins": plugins})),
        7 => (format!("consumer_groups/{n}"), json!({"plugins": plugins})),
        _ => {
            let name = if n == 1 { "jack" } else { "rose" };
            (format!("consumers/{name}"), json!({"username": name, "group_id": m, "plugins": plugins}))
        }
    };
    (0..9u8, id(), id(), plugins(), any::<bool>()).prop_map(move |(kind, n, m, plugins, gone)| {
        let (key, value) = base(kind, n, m, plugins);
        let key = ResourceKey::parse(&key).unwrap();
        (key, (!gone).then_some(value))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Any sequence of changes gives the same result as a compilation of the final state.
    #[test]
    fn changes_equal_a_full_compilation(batches in prop::collection::vec(prop::collection::vec(write(), 1..4), 1..12)) {
        let mut compiler = compiler();
        let roster = Arc::clone(compiler.roster());
        let mut config = Config::default();
        let mut order = 0;
        for batch in batches {
            let mut keys = Vec::new();
            for (key, value) in batch {
                order += 1;
                let kept = config.resources.order(&key).map(Order::created).unwrap_or(order);
                match &value {
                    Some(value) => put(&mut config, &key, value, kept, &*roster),
                    None => drop(config.resources.remove(&key)),
                }
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
            let changed = alone(|sources| compiler.change(&config, &keys, order, sources)).unwrap();
            let (_, anew) = alone(|sources| super::tests::compiler().compile(&config, order, sources)).unwrap();
            prop_assert_eq!(shown(&changed.snapshot), shown(&anew));
        }
    }
}

fn changed(
    compiler: &mut Compiler,
    config: &mut Config,
    key: &str,
    value: Value,
) -> Result<Arc<Snapshot>, Vec<Failure>> {
    let key = ResourceKey::parse(key).unwrap();
    let order =
        config.resources.order(&key).map(Order::created).unwrap_or(config.resources.keys().len() as u64);
    put(config, &key, &value, order, &*Arc::clone(compiler.roster()));
    alone(|sources| compiler.change(config, &[key], 1, sources)).map(|changed| changed.snapshot)
}

#[test]
fn unchanged_parts_stay_the_same_objects() {
    let (mut compiler, mut config) = (compiler(), Config::default());
    let route = |n: u8| json!({"uri": "/1", "upstream_id": 1, "plugins": {"a": {}, "b": {"n": n}}});
    changed(&mut compiler, &mut config, "upstreams/1", json!({"nodes": {}})).unwrap();
    changed(&mut compiler, &mut config, "routes/2", json!({"uri": "/2", "upstream_id": 1})).unwrap();
    let before = changed(&mut compiler, &mut config, "routes/1", route(1)).unwrap();
    let after = changed(&mut compiler, &mut config, "routes/1", route(2)).unwrap();
    let entry = |snapshot: &Snapshot, name| {
        let route = snapshot.routes.iter().find(|(_, route)| &*route.facts.id == "1").unwrap().1;
        Arc::clone(route.chain.get(name).unwrap())
    };
    assert!(Arc::ptr_eq(&entry(&before, "a"), &entry(&after, "a")), "an instance keeps its state");
    assert!(!Arc::ptr_eq(&entry(&before, "b"), &entry(&after, "b")));
    let other = |snapshot: &Snapshot| {
        Arc::clone(snapshot.routes.iter().find(|(_, route)| &*route.facts.id == "2").unwrap().1)
    };
    assert!(Arc::ptr_eq(&other(&before), &other(&after)));
    let (_, anew) = alone(|sources| compiler.compile(&config, 2, sources)).unwrap();
    assert!(Arc::ptr_eq(&entry(&after, "a"), &entry(&anew, "a")), "over a whole reload too");
    assert!(Arc::ptr_eq(after.upstream(0).unwrap(), anew.upstream(0).unwrap()));
}

#[test]
fn a_failure_names_its_resource_and_leaves_no_trace() {
    let (mut compiler, mut config) = (compiler(), Config::default());
    let good =
        changed(&mut compiler, &mut config, "routes/1", json!({"uri": "/1", "plugins": {"a": {}}})).unwrap();
    let bad = json!({"uri": "/2", "plugins": {"a": {"bad": "no"}}});
    let failures = changed(&mut compiler, &mut config, "routes/1", bad).unwrap_err();
    assert_eq!(failures[0].key.as_ref().unwrap().to_string(), "routes/1");
    assert!(
        failures[0].problem.to_string().contains("failed to check the configuration of plugin a err: \"no\"")
    );
    let key = ResourceKey::parse("routes/1").unwrap();
    put(&mut config, &key, &json!({"uri": "/1", "plugins": {"a": {}}}), 0, &*Arc::clone(compiler.roster()));
    let again = alone(|sources| compiler.change(&config, &[key], 1, sources)).unwrap().snapshot;
    assert_eq!(shown(&good), shown(&again));
}

/// A redirect to HTTPS must not lead to a port with another protocol.
#[test]
fn the_port_for_https_speaks_http() {
    let port = |listeners: &str| {
        let text = format!("listeners: {listeners}\n");
        let checked = sigma_config::parse(&text, &sigma_config::ParseOptions::default()).unwrap();
        super::https_port(&checked.config.settings)
    };
    let stream = r#"{ address: "127.0.0.1:443", stream: tls, tls: true }"#;
    assert_eq!(port(&format!("[{stream}]")), None);
    assert_eq!(port(&format!(r#"[{stream}, {{ address: "127.0.0.1:8443", tls: true }}]"#)), Some(8443));
}
