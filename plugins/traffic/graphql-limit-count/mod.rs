//! `graphql-limit-count`: `limit-count`, where each GraphQL query counts by its cost.
//!
//! | file | question |
//! |---|---|
//! | `cost` | what that costs |
//! | `schema` | which fields there are |

mod cost;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod schema;
#[cfg(test)]
mod tests;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use schemars::{JsonSchema, Schema as JsonShape, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_json::{Value, json};
use sigma_config::resources::{self, Decorations, PassHost};
use sigma_http::{Headers, Method};
use sigma_plugin::context::RouteResources;
use sigma_plugin::descriptor::{InlineUpstream, parsed};
use sigma_plugin::graphql::{Document, Message, NoDocument, NoMessage};
use sigma_plugin::outbound::{Call, CallError, Service, ServiceResponse};
use sigma_plugin::step::{BodyRead, End};
use sigma_plugin::{
    Build, Configuration, Context, Descriptor, Env, Phase, PhaseSet, Plugin, Reply, Resource, ResponseStep,
    Slot, Step,
};
use sigma_schema::Confidential;
use sigma_schema::described::{CONFIDENTIAL, schema_of};

use crate::shared::count::{self, LimitCount};
use crate::shared::quota::UNDETERMINED;
use cost::{Judge, MOST_SELECTIONS, NoCost, Strategy};
use schema::Schema;
use sigma_plugin_kit::asked_once::CachedCall as Asked;
use sigma_plugin_kit::decisions::{Bound, KeyOf};
use sigma_plugin_kit::log_throttle::LogThrottle;

const NAME: &str = "graphql-limit-count";

/// The plugin.
pub(crate) static GRAPHQL_LIMIT_COUNT: Descriptor = Descriptor {
    name: NAME,
    priority: 1004,
    example: include_str!("example.md"),
    phases: PhaseSet::of(&[Phase::Access, Phase::HeaderFilter]),
    metadata_schema: Some(schema_of::<count::Metadata>),
    attributes: Some(schema_of::<Attributes>),
    warnings: Some(|_, conf| count::warnings(conf)),
    upstreams: Some(|conf| {
        Config::deserialize(conf).ok().and_then(|config| config.upstream()).into_iter().collect()
    }),
    build: |build| Ok(Arc::new(GraphqlLimitCount::new(build)?)),
    variables: count::VARIABLES,
    group_field: Some(count::GROUP_FIELD),
    ..Descriptor::of::<Config>()
};

/// Schemas that a worker knows, of all services: they may have some megabytes each, and clients choose the path and
/// the host that one is requested under.
const KNOWN_SCHEMAS: Bound = Bound::new(16);

/// The largest response with a schema.
const SCHEMA_BYTES: usize = 8 << 20;

/// Milliseconds to wait for a schema: two to connect, two to send, five to read.
const SCHEMA_TIMEOUT_MS: u64 = 9_000;

/// Milliseconds for which no schema is requested again that could not be had.
const NO_SCHEMA_MS: u64 = 10_000;

/// Limits GraphQL queries in a time window by their cost.
///
/// It has the fields of [limit-count](limit-count.md) and counts in the same way, but a request counts as many times as
/// its query costs. A request without a query gets 400, and methods other than GET and POST get 405: nodes get only
/// parsed requests. A document with several operations, none of them chosen by `operationName`, has the cost of its
/// most expensive one.
///
/// `depth` is the number of nested selection sets. `complexity` adds up all fields and the operation: the cost of each
/// is the cost of its content, multiplied by `mul`, plus `add`; both are 1 by default. `node_quantifier` counts
/// objects. A field with an argument for the number of objects costs `add` for each object around it, and multiplies
/// the cost of its content by `mul`. Other fields cost nothing. Decorations set `add` and `mul` of a field: they are
/// in the route's service (`graphql_cost_decorations`), or below it in the Admin API. The plugin finds the fields by
/// the schema of the server, which it requests once by introspection. A worker keeps the schema until the
/// configuration of the plugin changes. The server is the upstream of the service, or else of the route. Without a
/// schema queries get 400, and the error log has the reason. Set `introspection_endpoint` if the route has many paths
/// or hosts: each has its own schema, and a worker keeps 16. While the Admin API's store has an unreadable decoration
/// without an earlier form, queries that need decorations get 503.
///
/// A query with expanded fragments has at most 100,000 selections, and its text at most 100 levels; more gets 400. An
/// ambiguous request gets 400 as well, such as one with a query string and a body, or with a repeated name in JSON.
#[derive(Deserialize, JsonSchema)]
struct Config {
    #[serde(flatten)]
    limit: count::Config,
    /// Measure of the cost of a query.
    #[schemars(extend("default" = "depth"))]
    cost_strategy: Strategy,
    /// A query with a higher cost gets 403 and still counts; 0 for no limit.
    #[schemars(extend("minimum" = 0, "default" = 0))]
    max_cost: f64,
    /// Factor of the cost. The product is rounded up.
    #[schemars(extend("exclusiveMinimum" = 0, "default" = 1))]
    score_factor: f64,
    /// Whether arguments with variables count, by the client's values.
    #[schemars(extend("default" = true))]
    resolve_variables: bool,
    /// The URL for the schema. Default: the path of the request at the upstream of the service.
    #[schemars(with = "Option<EndpointUrl>")]
    introspection_endpoint: Option<Service>,
    /// Header fields of the request for the schema, such as `Authorization`. It contains nothing else of the client's
    /// request.
    introspection_headers: Option<OwnFields>,
    /// Whether the certificate of `introspection_endpoint` is verified. Sigma's own.
    #[schemars(extend("default" = false, "own_default" = true))]
    introspection_ssl_verify: bool,
}

/// A URL, in the schema.
struct EndpointUrl;

impl JsonSchema for EndpointUrl {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "EndpointUrl".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> JsonShape {
        json_schema!({"type": "string", "pattern": "^https?://"})
    }
}

/// Fields of a head whose values are secrets.
#[derive(Default, Deserialize)]
struct OwnFields(BTreeMap<String, Confidential>);

impl JsonSchema for OwnFields {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "OwnFields".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> JsonShape {
        let mut schema = json_schema!({"type": "object", "additionalProperties": {"type": "string"}});
        schema.insert(CONFIDENTIAL.to_owned(), true.into());
        schema
    }
}

/// The attributes of the plugin in `plugin_attr`.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
struct Attributes {
    /// Largest body in bytes; it is held in memory. A larger one gets 400.
    #[schemars(range(min = 1), extend("default" = 1_048_576))]
    max_size: usize,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes { max_size: 1 << 20 }
    }
}

impl Configuration for Config {
    fn check(&self) -> Result<(), String> {
        self.limit.check()?;
        if self.limit.learns() {
            return Err(
                "cost_header: the cost comes from the query; only limit-count has this field".to_owned()
            );
        }
        let is_name =
            |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic() && b != b':');
        let fields = self.introspection_headers.iter().flat_map(|fields| fields.0.keys());
        match fields.into_iter().find(|name| !is_name(name)) {
            Some(name) => Err(format!("introspection_headers: `{name}` is not the name of a field")),
            None => Ok(()),
        }
    }
}

impl Config {
    fn upstream(&self) -> Option<InlineUpstream> {
        let endpoint = self.introspection_endpoint.as_ref()?;
        let upstream = endpoint.upstream(self.introspection_ssl_verify, SCHEMA_TIMEOUT_MS);
        Some(InlineUpstream { name: "introspection".to_owned(), upstream })
    }
}

struct GraphqlLimitCount(Arc<Inner>);

struct Inner {
    limit: Arc<LimitCount>,
    config: Config,
    max_size: usize,
    /// The upstream of the endpoint for introspection.
    endpoint: String,
    /// Schemas that were requested under other configurations are others.
    space: String,
}

/// The cost of the query of an exchange, for its client.
struct Cost(u64);

impl GraphqlLimitCount {
    fn new(build: &Build<'_>) -> Result<GraphqlLimitCount, String> {
        let attribute = build.node.attribute(NAME);
        let attributes =
            if attribute.is_null() { Ok(Attributes::default()) } else { Attributes::deserialize(attribute) };
        let attributes = attributes.map_err(|error| format!("plugin_attr.{NAME}: {error}"))?;
        Ok(GraphqlLimitCount(Arc::new(Inner {
            limit: LimitCount::new(build)?,
            config: parsed(build.conf)?,
            max_size: attributes.max_size,
            endpoint: build.upstream_key("introspection"),
            space: format!("{}:{:x}", build.resource, build.conf_hash()),
        })))
    }
}

impl Plugin for GraphqlLimitCount {
    fn access(&self, ctx: &mut Context, _: &Env<'_>) -> Step {
        if !matches!(ctx.request.method, Method::Get | Method::Post) {
            return Step::status(405);
        }
        let (inner, slot) = (Arc::clone(&self.0), Slot::from(self));
        let then = move |ctx: &mut Context, env: &Env<'_>, read: BodyRead| match read {
            BodyRead::TooLarge => no_message(&NoMessage::Empty),
            BodyRead::Whole => inner.judge(slot, ctx, env),
        };
        Step::ReadBody { limit: self.0.max_size, then: Box::new(then) }
    }

    fn header_filter(&self, ctx: &mut Context, env: &Env<'_>) -> ResponseStep {
        if let Some(Cost(cost)) = ctx.take_kept(self) {
            ctx.response.headers.replace("X-Graphql-Query-Cost", itoa::Buffer::new().format(cost).as_bytes());
        }
        self.0.limit.header_filter(ctx, env)
    }

    fn foresee(&self, ctx: &mut Context) -> Option<Value> {
        // The cost depends on the body.
        self.0.limit.foresee(ctx)
    }
}

impl Inner {
    /// Judges a request whose body is known.
    fn judge(self: Arc<Self>, slot: Slot, ctx: &mut Context, env: &Env<'_>) -> Step {
        let (query, body) =
            (ctx.outgoing_query().unwrap_or_default(), ctx.body.as_deref().unwrap_or_default());
        let message = match Message::required(ctx.request.method, query, &ctx.request.headers, body) {
            Ok(message) => message,
            Err(reason) => return no_message(&reason),
        };
        let decorated = self.decorated(ctx);
        let Some(service) = decorated else { return self.count(slot, &message, None, ctx, env) };
        if service.graphql_cost_decorations.is_partial() {
            return no_costs();
        }
        let Some((upstream, target, host)) = self.server(ctx) else { return no_schema() };
        let mut key = KeyOf::default();
        for part in [self.space.as_str(), service.id.as_str(), upstream.as_str(), host.as_str()] {
            key.part(part.as_bytes());
        }
        key.part(&target);
        let own = self.config.introspection_headers.as_ref();
        let mut headers = Headers::default();
        headers.append("Content-Type", b"application/json");
        for (name, value) in own.iter().flat_map(|fields| &fields.0) {
            headers.append(name, value.reveal().as_bytes());
        }
        let asked = Asked {
            key: key.finish(),
            call: move |ctx: &Context, _: &Env<'_>| Call {
                upstream: upstream.into(),
                method: Method::Post,
                target,
                host: host.into(),
                headers,
                passes: ctx.passes(),
                body: Some(json!({"query": schema::QUESTION}).to_string().into_bytes()),
                timeout_ms: SCHEMA_TIMEOUT_MS,
                limit: SCHEMA_BYTES,
            },
            read: Box::new(|answer| match read_schema(answer) {
                Ok(schema) => (Some(schema), Some(u64::MAX)),
                Err(reason) => {
                    static COMPLAINT: LogThrottle = LogThrottle::new();
                    if let Some(left_out) = COMPLAINT.due() {
                        tracing::error!(
                            left_out,
                            reason,
                            "graphql-limit-count: the server returns no schema"
                        );
                    }
                    (None, Some(NO_SCHEMA_MS))
                }
            }),
        };
        asked.ask_within(KNOWN_SCHEMAS, ctx, env, move |schema: &Option<Schema>, ctx, env| match schema {
            None => no_schema(),
            Some(schema) => {
                let decorated = (&*service.graphql_cost_decorations, schema);
                self.count(slot, &message, Some(decorated), ctx, env)
            }
        })
    }

    /// The service whose decorations say what fields cost, if that makes a difference.
    fn decorated(&self, ctx: &Context) -> Option<Arc<resources::Service>> {
        let service = ctx.route.as_ref()?.resources.service.as_ref()?.share::<resources::Service>();
        let decorated = service.filter(|service| !service.graphql_cost_decorations.is_empty());
        decorated.filter(|_| self.config.cost_strategy != Strategy::Depth)
    }

    /// The server of the schema: the key of the upstream, the target and the host.
    fn server(&self, ctx: &Context) -> Option<(String, Vec<u8>, String)> {
        if let Some(endpoint) = &self.config.introspection_endpoint {
            return Some((
                self.endpoint.clone(),
                endpoint.target.as_bytes().to_vec(),
                endpoint.host.to_string(),
            ));
        }
        let (key, inline) = upstream(&ctx.route.as_ref()?.resources)?;
        let rewritten = inline.filter(|upstream| upstream.pass_host == PassHost::Rewrite);
        let host = rewritten.and_then(|upstream| upstream.upstream_host.as_deref());
        let host =
            host.map_or_else(|| String::from_utf8_lossy(ctx.request.authority()).into_owned(), Into::into);
        let target = ctx.outgoing_target().split(|b| *b == b'?').next().unwrap_or_default().to_vec();
        Some((key, target, host))
    }

    /// Counts a request as what its query costs.
    fn count(
        self: &Arc<Self>,
        slot: Slot,
        message: &Message,
        decorated: Option<(&Decorations, &Schema)>,
        ctx: &mut Context,
        env: &Env<'_>,
    ) -> Step {
        let Config { cost_strategy: strategy, score_factor, resolve_variables, max_cost, .. } = self.config;
        let document = match Document::parse(&message.document, MOST_SELECTIONS) {
            Ok(document) => document,
            Err(NoDocument::TooLarge) => return no_cost(NoCost::TooMany),
            Err(NoDocument::Syntax(_)) if message.document.trim().is_empty() => {
                return no_cost(NoCost::Empty);
            }
            Err(NoDocument::Syntax(_)) => {
                return refused("Invalid graphql request: failed to parse graphql query");
            }
        };
        let judge = Judge { strategy, score_factor, resolve_variables, decorated };
        let cost = match judge.cost(&document, message) {
            Ok(cost) => cost,
            Err(reason) => return no_cost(reason),
        };
        if self.limit.is_shown() {
            ctx.keep(slot, Cost(cost));
        }
        let counted = self.limit.charge(ctx, env, cost);
        if max_cost == 0.0 || cost as f64 <= max_cost {
            return counted;
        }
        let inner = Arc::clone(self);
        counted.and_then(ctx, env, move |end, _, env| match end {
            End::Reply(reply) if reply.reason == Some(UNDETERMINED) => Step::Reply(reply),
            _ if inner.limit.refusal().is_dry() => inner.limit.refusal().over(env, None),
            _ => {
                let reason = format!("query cost {cost} exceeds max_cost {max_cost}");
                Step::json(403, &json!({"message": format!("Invalid graphql request: {reason}")}))
            }
        })
    }
}

/// Returns the upstream of a route's service, or else its own: the key, and the upstream itself if it is
/// inline.
fn upstream(of: &RouteResources) -> Option<(String, Option<&resources::Upstream>)> {
    if let Some(service) = of.service.as_ref().and_then(Resource::get::<resources::Service>) {
        if let Some(id) = &service.upstream_id {
            return Some((format!("upstreams/{id}"), None));
        }
        if let Some(inline) = &service.upstream {
            return Some((format!("services/{}", service.id), Some(inline)));
        }
    }
    let route = of.route.as_ref()?.get::<resources::Route>()?;
    match (&route.upstream_id, &route.upstream) {
        (Some(id), _) => Some((format!("upstreams/{id}"), None)),
        (None, Some(inline)) => Some((format!("routes/{}", route.id), Some(inline))),
        (None, None) => None,
    }
}

/// The schema in the response of a server.
///
/// # Errors
/// Returns an error, which is the reason, if there is no schema.
fn read_schema(answer: Result<ServiceResponse, CallError>) -> Result<Schema, String> {
    match answer {
        Ok(ServiceResponse { status: 200, body, .. }) => {
            Schema::read(&body).ok_or_else(|| "the introspection response is not a schema".to_owned())
        }
        Ok(ServiceResponse { status, .. }) => {
            Err(format!("the introspection response has the status {status}"))
        }
        Err(error) => Err(error.to_string()),
    }
}

fn no_message(reason: &NoMessage) -> Step {
    match reason {
        NoMessage::Empty => refused("Invalid graphql request: can't get graphql request body"),
        NoMessage::Absent(reason) | NoMessage::Ambiguous(reason) => {
            refused(&format!("invalid graphql request, {reason}"))
        }
    }
}

fn no_cost(reason: NoCost) -> Step {
    refused(match reason {
        NoCost::Empty => "Invalid graphql request: empty graphql query",
        NoCost::Cycle => "Invalid graphql request: fragment spreads must not form cycles",
        NoCost::TooMany => "Invalid graphql request: the query expands too many selections",
    })
}

/// The store has a decoration that cannot be read: the query may cost anything.
fn no_costs() -> Step {
    let reply = Reply::new(503).json(&json!({"message": "the cost of the graphql query is unknown"}));
    reply.because("a cost decoration of the service is malformed").into()
}

fn no_schema() -> Step {
    refused("Invalid graphql request: failed to introspect the upstream graphql schema")
}

fn refused(message: &str) -> Step {
    Reply::new(400).json(&json!({ "message": message })).into()
}
