//! The router against the sentences of the reference, and against a matcher that tries every route in the plainest
//! way.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use proptest::prelude::*;
use sigma_config::resources::{Route, Service, Status};
use sigma_http::Method;
use sigma_schema::cidr::{Cidr, CidrSet};
use sigma_schema::expr::{Expr, VarName, VarValue, Variables};

use super::*;

const HOST_URI: RouterKind = RouterKind::RadixtreeHostUri;
const URI: RouterKind = RouterKind::RadixtreeUri;
const PARAMETERS: RouterKind = RouterKind::RadixtreeUriWithParameter;
const ORDERED: RouterKind = RouterKind::Ordered;
const KINDS: [RouterKind; 3] = [HOST_URI, URI, PARAMETERS];
const ALL_KINDS: [RouterKind; 4] = [HOST_URI, URI, PARAMETERS, ORDERED];

/// A route as the tests write it.
#[derive(Debug, Clone)]
struct TestRoute {
    uris: Vec<String>,
    hosts: Vec<String>,
    methods: Vec<String>,
    priority: i64,
    vars: Expr,
    remote_addrs: CidrSet,
    consumes: Vec<String>,
    produces: Vec<String>,
    listeners: Vec<u16>,
    method_not_allowed: bool,
    internal: bool,
    enabled: bool,
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|text| (*text).to_owned()).collect()
}

fn route(uris: &[&str]) -> TestRoute {
    TestRoute {
        uris: strings(uris),
        hosts: Vec::new(),
        methods: Vec::new(),
        priority: 0,
        vars: Expr::default(),
        remote_addrs: CidrSet::default(),
        consumes: Vec::new(),
        produces: Vec::new(),
        listeners: Vec::new(),
        method_not_allowed: false,
        internal: false,
        enabled: true,
    }
}

impl TestRoute {
    fn hosts(mut self, hosts: &[&str]) -> TestRoute {
        self.hosts = strings(hosts);
        self
    }

    fn methods(mut self, methods: &[&str]) -> TestRoute {
        self.methods = strings(methods);
        self
    }

    fn priority(mut self, priority: i64) -> TestRoute {
        self.priority = priority;
        self
    }

    fn input(&self) -> RouteInput<'_> {
        RouteInput {
            uris: self.uris.iter().map(String::as_str).collect(),
            hosts: self.hosts.iter().map(String::as_str).collect(),
            methods: MethodSet::of_names(&self.methods),
            priority: self.priority,
            remote_addrs: self.remote_addrs.clone(),
            vars: &self.vars,
            filter: None,
            consumes: &self.consumes,
            produces: &self.produces,
            method_not_allowed: self.method_not_allowed,
            listeners: self.listeners.clone(),
            internal: self.internal,
            enabled: self.enabled,
        }
    }
}

/// A request as the tests write it.
#[derive(Debug, Clone)]
struct TestRequest {
    method: Method,
    host: String,
    raw_host: String,
    path: String,
    remote_addr: Option<IpAddr>,
    listener: u16,
    content_type: Option<String>,
    accept: Option<String>,
    is_internal: bool,
}

fn get(host: &str, path: &str) -> TestRequest {
    TestRequest {
        method: Method::Get,
        host: host.to_owned(),
        raw_host: host.to_owned(),
        path: path.to_owned(),
        remote_addr: Some(IpAddr::from([127, 0, 0, 1])),
        listener: 0,
        content_type: None,
        accept: None,
        is_internal: false,
    }
}

/// Variables of which none is set.
struct NoVariables;

impl Variables for NoVariables {
    fn get(&self, _name: &VarName) -> Option<VarValue<'_>> {
        None
    }
}

impl Request for TestRequest {
    fn method(&self) -> Method {
        self.method
    }
    fn path(&self) -> &[u8] {
        self.path.as_bytes()
    }
    fn host(&self) -> &[u8] {
        self.host.as_bytes()
    }
    fn raw_host(&self) -> &[u8] {
        self.raw_host.as_bytes()
    }
    fn remote_addr(&self) -> Option<IpAddr> {
        self.remote_addr
    }
    fn listener(&self) -> u16 {
        self.listener
    }
    fn content_type(&self) -> Option<&[u8]> {
        self.content_type.as_deref().map(str::as_bytes)
    }
    fn accept(&self) -> Option<&[u8]> {
        self.accept.as_deref().map(str::as_bytes)
    }
    fn variables(&self) -> &dyn Variables {
        &NoVariables
    }
    fn is_internal(&self) -> bool {
        self.is_internal
    }
}

fn compile(kind: RouterKind, routes: &[TestRoute]) -> Router {
    Router::compile(kind, numbered(routes))
}

/// The routes with their positions as numbers and order.
fn numbered(routes: &[TestRoute]) -> impl Iterator<Item = (u32, u64, RouteInput<'_>)> {
    (0..).zip(0..).zip(routes).map(|((number, order), route)| (number, order, route.input()))
}

type Captures = Vec<(String, String)>;

fn look_up(kind: RouterKind, routes: &[TestRoute], request: &TestRequest) -> (Outcome, Captures) {
    find(&compile(kind, routes), request)
}

fn find(router: &Router, request: &TestRequest) -> (Outcome, Captures) {
    let mut params = Params::new();
    let outcome = router.find(request, &mut params);
    let captures =
        params.iter().map(|(name, range)| (name.to_owned(), request.path[range].to_owned())).collect();
    (outcome, captures)
}

/// Checks which route (by position) takes each request, in each of `kinds`.
fn check(kinds: &[RouterKind], routes: &[TestRoute], cases: &[(TestRequest, Option<u32>)]) {
    for &kind in kinds {
        for (request, expected) in cases {
            let expected = expected.map_or(Outcome::NotFound, Outcome::Route);
            assert_eq!(look_up(kind, routes, request).0, expected, "{kind:?} {request:?}\n{routes:#?}");
        }
    }
}

#[test]
fn exact_comes_before_longer_prefix_before_shorter() {
    let routes = [
        route(&["/*"]).priority(9),
        route(&["/a/*"]).priority(8),
        route(&["/a/b"]),
        route(&["*"]).priority(10),
        route(&["/a/b*"]),
    ];
    check(
        &KINDS,
        &routes,
        &[
            (get("h", "/a/b"), Some(2)),
            (get("h", "/a/bc"), Some(4)),
            (get("h", "/a/b/c"), Some(4)),
            (get("h", "/a/c"), Some(1)),
            (get("h", "/a/"), Some(1)),
            (get("h", "/a"), Some(0)),
            (get("h", "/"), Some(0)),
            (get("h", ""), Some(3)),
        ],
    );
}

#[test]
fn same_key_is_ordered_by_priority_then_insertion() {
    let routes = [route(&["/a"]), route(&["/a", "/b"]).priority(1), route(&["/b"]).priority(1)];
    check(&KINDS, &routes, &[(get("h", "/a"), Some(1)), (get("h", "/b"), Some(1)), (get("h", "/c"), None)]);
    let routes = [route(&["/p/*"]), route(&["/p/*/x"])];
    check(&KINDS, &routes, &[(get("h", "/p/1/x"), Some(1)), (get("h", "/p/1/y"), Some(0))]);
    let routes = [route(&["/p/*"]).priority(1), route(&["/p/*/x"])];
    check(&KINDS, &routes, &[(get("h", "/p/1/x"), Some(0))]);
    let routes = [route(&["/a"]), route(&["/a"])];
    check(&KINDS, &routes, &[(get("h", "/a"), Some(0))]);
}

#[test]
fn wildcards_match_as_the_reference_says() {
    for (pattern, path, expected) in [
        ("/foo*", "/foo", true),
        ("/foo*", "/foobar", true),
        ("/foo*", "/foo/x", true),
        ("/foo/*", "/foo/", true),
        ("/foo/*", "/foo/x", true),
        ("/foo/*", "/foo", false),
        ("/*", "/any/thing", true),
        ("/a*b", "/a", true),
        ("/a*b", "/axyz", true),
        ("/a*b/c", "/a", true),
        ("/a/*/b", "/a/x/b", true),
        ("/a/*/b", "/a/x/y/b", true),
        ("/a/*/b", "/a/x/c", false),
        ("/a/*/b", "/a/x/b/c", false),
        ("/a/*/b", "/a/b", false),
        ("/a/*/b*", "/a/x/bc/d", true),
        ("/a/*/b/*", "/a/x/b/", true),
        ("/a/*/b/*", "/a/x/b", false),
        ("/a/*/b/*/c", "/a/1/b/2/c", true),
        ("/a/*/b/*/c", "/a/1/b/c", false),
        ("/Foo", "/foo", false),
        ("/foo", "/foo/", false),
    ] {
        check(&KINDS, &[route(&[pattern])], &[(get("h", path), expected.then_some(0))]);
    }
    // A colon is a letter to the routers without parameters, unless the pattern has a wildcard.
    check(&[HOST_URI, URI], &[route(&["/a/:b"])], &[(get("h", "/a/x"), None), (get("h", "/a/:b"), Some(0))]);
    check(
        &[HOST_URI, URI],
        &[route(&["/a/*/:b"])],
        &[(get("h", "/a/x/y"), Some(0)), (get("h", "/a/x/"), None)],
    );
    check(
        &[HOST_URI, URI],
        &[route(&["/a/:b/*"])],
        &[(get("h", "/a/x/y"), None), (get("h", "/a/:b/y"), Some(0))],
    );
}

#[test]
fn parameters_capture() {
    for (pattern, path, expected) in [
        ("/blog/:name", "/blog/dog", Some(&[("name", "dog")][..])),
        ("/blog/:name", "/blog/", None),
        ("/blog/:name", "/blog/a/b", None),
        ("/blog/:name/", "/blog/a/", Some(&[("name", "a")])),
        ("/blog/:name/", "/blog/a", None),
        ("/u/:id/p/:post", "/u/7/p/x.y", Some(&[("id", "7"), ("post", "x.y")])),
        ("/u/:id/*rest", "/u/7/a/b", Some(&[("id", "7"), ("rest", "a/b")])),
        ("/u/:id/*rest", "/u/7/", Some(&[("id", "7"), ("rest", "")])),
        ("/u/:id/*", "/u/7/a", Some(&[("id", "7"), (":ext", "a")])),
        ("/f/*", "/f/a/b", Some(&[(":ext", "a/b")])),
        ("/f/*path", "/f/a/b", Some(&[("path", "a/b")])),
        ("/:a/v1.0", "/x/v1.0", Some(&[("a", "x")])),
        ("/:a/v1.0", "/x/v1-0", Some(&[("a", "x")])),
        ("/:a/v1.0", "/x/v10", None),
        ("/f/*x/m/*y", "/f/1/m/2/m/3", Some(&[("x", "1/m/2"), ("y", "3")])),
        ("/f/*x/:y/z", "/f/1/2/3/z", Some(&[("x", "1/2"), ("y", "3")])),
        ("/v/a:b", "/v/a:b", Some(&[])),
        ("/v/a:b", "/v/axx", None),
    ] {
        let captures = |list: &[(&str, &str)]| {
            list.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        let expected = match expected {
            Some(list) => (Outcome::Route(0), captures(list)),
            None => (Outcome::NotFound, Captures::new()),
        };
        assert_eq!(look_up(PARAMETERS, &[route(&[pattern])], &get("h", path)), expected, "{pattern} {path}");
    }
    let routes = [route(&["/blog/*"]), route(&["/blog/:name"]), route(&["/blog/me"])];
    check(
        &[PARAMETERS],
        &routes,
        &[(get("h", "/blog/x"), Some(1)), (get("h", "/blog/me"), Some(2)), (get("h", "/blog/x/y"), Some(0))],
    );
    let router = compile(PARAMETERS, &[route(&["/:a/:a"])]);
    let mut params = Params::new();
    assert_eq!(router.find(&get("h", "/1/22"), &mut params), Outcome::Route(0));
    assert_eq!(params.get(b"a"), Some(3..5));
    assert_eq!(params.get(b"b"), None);
}

#[test]
fn host_tree_puts_the_host_before_everything() {
    let routes = [
        route(&["/a"]).priority(100),
        route(&["/*"]).hosts(&["*.foo.com"]),
        route(&["/*"]).hosts(&["a.foo.com"]),
        route(&["/x"]).hosts(&["*.a.foo.com", "*.B.foo.com"]).priority(7),
        route(&["/*"]).hosts(&["bar.com:8080"]),
        route(&["/only"]).hosts(&["*"]),
    ];
    check(
        &[HOST_URI],
        &routes,
        &[
            (get("a.foo.com", "/a"), Some(2)),
            (get("b.foo.com", "/a"), Some(1)),
            (get("x.y.foo.com", "/a"), Some(1)),
            (get("foo.com", "/a"), Some(0)),
            (get("z.b.foo.com", "/x"), Some(3)),
            (get("z.b.foo.com", "/y"), Some(1)),
            (get("bar.com", "/a"), Some(0)),
            (get("bar.com", "/b"), None),
            (get("_", "/only"), Some(5)),
            (get("a.foo.com", "/only"), Some(2)),
        ],
    );
}

#[test]
fn host_condition_has_no_precedence() {
    let routes = [
        route(&["/a"]).priority(1),
        route(&["/a"]).hosts(&["foo.com"]),
        route(&["/b"]).hosts(&["*.foo.com"]),
        route(&["/b"]).hosts(&["x.foo.com"]),
        route(&["/c"]).hosts(&["foo.com:81"]),
    ];
    let with_port = TestRequest { raw_host: "foo.com:81".to_owned(), ..get("foo.com", "/c") };
    let cases = [
        (get("foo.com", "/a"), Some(0)),
        (get("x.foo.com", "/b"), Some(2)),
        (get("foo.com", "/b"), None),
        (get("foo.com", "/c"), None),
        (with_port, Some(4)),
    ];
    check(&[URI, PARAMETERS], &routes, &cases);
}

#[test]
fn conditions_decide_among_candidates() {
    let mut listener = route(&["/l"]);
    listener.listeners = vec![2, 3];
    let mut off = route(&["/off"]);
    off.enabled = false;
    let routes = [
        route(&["/m"]).methods(&["GET", "POST"]).priority(1),
        route(&["/m"]),
        route(&["/n"]).methods(&["GET"]),
        route(&["/*"]).methods(&["PUT"]),
        listener,
        off,
        route(&["/odd"]).methods(&["BREW"]),
    ];
    let with = |method, path: &str| TestRequest { method, ..get("h", path) };
    check(
        &KINDS,
        &routes,
        &[
            (with(Method::Post, "/m"), Some(0)),
            (with(Method::Put, "/m"), Some(1)),
            (with(Method::Other, "/m"), Some(1)),
            (with(Method::Other, "/n"), None),
            (with(Method::Put, "/n"), Some(3)),
            (with(Method::Post, "/n"), None),
            (get("h", "/l"), None),
            (TestRequest { listener: 3, ..get("h", "/l") }, Some(4)),
            (get("h", "/off"), None),
            (get("h", "/odd"), None),
            (with(Method::Other, "/odd"), None),
        ],
    );
}

#[test]
fn addresses_and_variables_are_conditions() {
    let mut near = route(&["/a"]);
    near.remote_addrs =
        ["10.0.0.0/8", "::1"].iter().map(|text| text.parse::<Cidr>().expect("a network")).collect();
    let mut unset = route(&["/v"]);
    unset.vars = Expr::parse(&serde_json::json!([["arg_x", "==", null]])).expect("an expression");
    let mut set = route(&["/v"]).priority(1);
    set.vars = Expr::parse(&serde_json::json!([["arg_x", "==", "1"]])).expect("an expression");
    let from = |addr: Option<&str>| TestRequest {
        remote_addr: addr.map(|text| text.parse().expect("an address")),
        ..get("h", "/a")
    };
    check(
        &KINDS,
        &[near, unset, set],
        &[
            (from(Some("10.1.2.3")), Some(0)),
            (from(Some("::1")), Some(0)),
            (from(Some("11.1.2.3")), None),
            (from(None), None),
            (get("h", "/v"), Some(1)),
        ],
    );
}

#[test]
fn ordered_routes_compete_by_priority_then_place() {
    let routes = [
        route(&["/a/b"]),
        route(&["/*"]).methods(&["DELETE"]).priority(9),
        route(&["/a/*"]).priority(3),
        route(&["/*"]).hosts(&["*.foo.com"]).priority(5),
        route(&["/a/:id"]).hosts(&["x.foo.com"]).priority(4),
        route(&["~\\.php$"]).priority(4),
        route(&["*"]),
        route(&["/a/b/c"]).priority(3),
    ];
    let with = |method, path: &str| TestRequest { method, ..get("h", path) };
    check(
        &[ORDERED],
        &routes,
        &[
            (get("h", "/a/b"), Some(2)),
            (get("h", "/a/b/c"), Some(2)),
            (get("h", "/a"), Some(6)),
            (get("x.foo.com", "/a/b"), Some(3)),
            (get("h", "/a/b.php"), Some(5)),
            (with(Method::Delete, "/a/b"), Some(1)),
            (get("h", ""), Some(6)),
        ],
    );
    // The captures belong to the chosen route, not to a candidate that was tried before it.
    let routes = [route(&["/a/*rest"]).priority(2), route(&["/a/b/:id"]), route(&["~^/(x)/(?<n>.)"])];
    let captures = |path: &str| look_up(ORDERED, &routes, &get("h", path)).1;
    assert_eq!(captures("/a/b/1"), [("rest".to_owned(), "b/1".to_owned())]);
    let expected =
        [("1", "x"), ("2", "y"), ("n", "y")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(captures("/x/y"), expected);
}

#[test]
fn path_expressions_compete_with_their_literal_beginning() {
    let routes = [
        route(&["/api/*"]),
        route(&["~^/api/v[0-9]+/"]),
        route(&["~*^/API/X$"]),
        route(&["~[.]php$"]),
        route(&["/b", "~^/c$"]),
    ];
    check(
        &KINDS,
        &routes,
        &[
            (get("h", "/api/v1/a"), Some(1)),
            (get("h", "/api/vx/a"), Some(0)),
            (get("h", "/api/x"), Some(0)),
            (get("h", "/Api/x"), Some(2)),
            (get("h", "/api/v1/a.php"), Some(1)),
            (get("h", "/d/a.php"), Some(3)),
            (get("h", "/c"), Some(4)),
            (get("h", "/b"), Some(4)),
            (get("h", "/cc"), None),
        ],
    );
}

#[test]
fn clients_do_not_reach_internal_routes() {
    let mut internal = route(&["/a"]).priority(1);
    internal.internal = true;
    let routes = [internal, route(&["/*"])];
    let own = TestRequest { is_internal: true, ..get("h", "/a") };
    check(&ALL_KINDS, &routes, &[(get("h", "/a"), Some(1)), (own, Some(0))]);
    let reason = compile(ORDERED, &routes).explain(numbered(&routes), &get("h", "/a")).remove(0).verdict;
    let expected = "internal: only requests of the gateway itself reach it".to_owned();
    assert_eq!(reason, Verdict::Rejected(expected));
}

/// A look-up reads the routes of the keys on its way, however many others there are.
#[test]
fn ordered_routes_are_not_scanned() {
    use std::cell::Cell;

    /// A request that counts the conditions that are checked.
    struct Counted(TestRequest, Cell<usize>);

    impl Request for Counted {
        fn method(&self) -> Method {
            self.0.method
        }
        fn path(&self) -> &[u8] {
            self.0.path()
        }
        fn host(&self) -> &[u8] {
            self.0.host()
        }
        fn raw_host(&self) -> &[u8] {
            self.0.raw_host()
        }
        fn remote_addr(&self) -> Option<IpAddr> {
            self.0.remote_addr()
        }
        fn listener(&self) -> u16 {
            self.1.set(self.1.get() + 1);
            0
        }
        fn content_type(&self) -> Option<&[u8]> {
            None
        }
        fn accept(&self) -> Option<&[u8]> {
            None
        }
        fn variables(&self) -> &dyn Variables {
            &NoVariables
        }
    }

    let mut routes: Vec<TestRoute> = (0..10_000)
        .map(|n| {
            let path = format!("/service{}/v{n}/*", n % 100);
            route(&[&path]).hosts(&[&format!("h{}.example.com", n % 50)]).priority(10_000 - n)
        })
        .collect();
    routes.push(route(&["/*"]).priority(-1));
    for route in &mut routes {
        route.listeners = vec![0];
    }
    let router = compile(ORDERED, &routes);
    for (path, expected) in [
        ("/service77/v777/x", 777),
        ("/service77/v7777/x", 7777),
        ("/service78/v7777/x", 10_000),
        ("/none", 10_000),
    ] {
        let request = Counted(get("h27.example.com", path), Cell::new(0));
        assert_eq!(router.find(&request, &mut Params::new()), Outcome::Route(expected), "{path}");
        assert!(request.1.get() <= 2, "{path}: {} conditions", request.1.get());
    }
}

#[test]
fn inputs_come_from_resources() {
    let service = Service { hosts: strings(&["service.com"]).into(), ..Service::default() };
    let plain = Route {
        uri: Some("/a".into()),
        status: Status::ON,
        listeners: strings(&["web", "gone"]).into(),
        ..Route::default()
    };
    let number = |name: &str| (name == "web").then_some(7);
    let input = RouteInput::of(&plain, Some(&service), number);
    assert_eq!((input.hosts, input.uris, input.enabled), (vec!["service.com"], vec!["/a"], true));
    assert_eq!(input.listeners, [7, RouteInput::NO_LISTENER]);
    let own = Route {
        host: Some("own.com".into()),
        uris: strings(&["/a", "/b"]).into(),
        status: Status::OFF,
        ..Route::default()
    };
    let input = RouteInput::of(&own, Some(&service), number);
    assert_eq!((input.hosts, input.uris, input.enabled), (vec!["own.com"], vec!["/a", "/b"], false));
}

#[test]
fn misses_have_answers_of_their_own() {
    let strict = |mut route: TestRoute| {
        route.method_not_allowed = true;
        route
    };
    let mut json = strict(route(&["/j"]).methods(&["POST"]));
    json.consumes = strings(&["application/json"]);
    json.produces = strings(&["application/json"]);
    let routes = [
        strict(route(&["/a"]).methods(&["POST"])),
        route(&["/a*"]).methods(&["DELETE"]),
        route(&["/b"]).methods(&["POST"]),
        json,
        strict(route(&["/h"]).methods(&["PUT"]).hosts(&["foo.com"])),
    ];
    let allow = |methods: &[Method]| Outcome::MethodNotAllowed(methods.iter().copied().collect());
    let json_request = |method, content_type: &str, accept: &str| TestRequest {
        method,
        content_type: Some(content_type.to_owned()),
        accept: Some(accept.to_owned()),
        ..get("h", "/j")
    };
    for kind in ALL_KINDS {
        for (request, expected) in [
            (get("h", "/a"), allow(&[Method::Post, Method::Delete])),
            (get("h", "/ab"), Outcome::NotFound),
            (get("h", "/b"), Outcome::NotFound),
            (get("h", "/h"), Outcome::NotFound),
            (get("foo.com", "/h"), allow(&[Method::Put])),
            (json_request(Method::Post, "application/json", "*/*"), Outcome::Route(3)),
            (json_request(Method::Post, "text/plain", "*/*"), Outcome::UnsupportedMediaType),
            (json_request(Method::Post, "application/json", "text/html"), Outcome::NotAcceptable),
            (json_request(Method::Get, "text/plain", "text/html"), allow(&[Method::Post])),
        ] {
            assert_eq!(look_up(kind, &routes, &request).0, expected, "{kind:?} {request:?}");
        }
    }
    let set: MethodSet = [Method::Post, Method::Get].into_iter().collect();
    assert_eq!(set.to_string(), "GET, POST");
}

#[test]
fn explains_every_route() {
    let mut off = route(&["/a"]);
    off.enabled = false;
    let mut json = route(&["/a"]);
    json.consumes = strings(&["application/json"]);
    let with_vars = |name: &str| {
        let mut with = route(&["/a"]);
        with.vars = Expr::parse(&serde_json::json!([[name, "==", "1"]])).expect("an expression");
        with
    };
    let routes = [
        with_vars("arg_x"),
        with_vars("post_arg.x"),
        route(&["/b", "/c/*"]),
        route(&["/a"]).methods(&["POST"]),
        route(&["/a"]).hosts(&["foo.com"]),
        off,
        json,
        route(&["/a"]),
        route(&["/*"]),
    ];
    for kind in KINDS {
        let found: Vec<String> = compile(kind, &routes)
            .explain(numbered(&routes), &get("h", "/a"))
            .into_iter()
            .map(|explanation| match explanation.verdict {
                Verdict::Matched => "matched".to_owned(),
                Verdict::Rejected(reason) => reason,
            })
            .collect();
        let expected = [
            "vars false",
            "vars false: `post_arg.x` needs the request body",
            "path /a not in [/b, /c/*]",
            "method GET not in [POST]",
            "host h not in [foo.com]",
            "disabled",
            "no content type, consumes [application/json]",
            "matched",
            "shadowed by earlier match: route 7 comes first",
        ];
        assert_eq!(found, expected, "{kind:?}");
    }
}

/// The reference, read as literally as possible.
mod naive {
    use super::*;

    enum Token {
        Byte(u8),
        /// `.` in regular expression text.
        Dot,
        Segment(String),
        /// Anything; captured if it has a name.
        Any(Option<String>),
    }

    fn tokens(pattern: &str) -> Vec<Token> {
        let segments: Vec<&str> = pattern.split('/').collect();
        // The text after a wildcard inside a segment is ignored, names included.
        let inner_wildcard = |segment: &str| !segment.starts_with([':', '*']) && segment.contains('*');
        let has_names = segments
            .iter()
            .take_while(|segment| !inner_wildcard(segment))
            .any(|segment| segment.starts_with([':', '*']));
        let mut tokens = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            if index > 0 {
                tokens.push(Token::Byte(b'/'));
            }
            if let Some(name) = segment.strip_prefix(':') {
                tokens.push(Token::Segment(name.to_owned()));
            } else if let Some(name) = segment.strip_prefix('*') {
                tokens.push(Token::Any(Some(if name.is_empty() { ":ext" } else { name }.to_owned())));
            } else {
                for byte in segment.bytes() {
                    match byte {
                        b'*' => {
                            tokens.push(Token::Any(None));
                            return tokens;
                        }
                        b'.' if has_names => tokens.push(Token::Dot),
                        byte => tokens.push(Token::Byte(byte)),
                    }
                }
            }
        }
        tokens
    }

    /// Backtracking, greedy.
    fn fit(tokens: &[Token], text: &str, captures: &mut Captures) -> bool {
        let Some((token, rest)) = tokens.split_first() else { return text.is_empty() };
        let (lengths, name): (Vec<usize>, _) = match token {
            Token::Byte(byte) => (if text.as_bytes().first() == Some(byte) { vec![1] } else { vec![] }, None),
            Token::Dot => (if text.is_empty() { vec![] } else { vec![1] }, None),
            Token::Segment(name) => ((1..=text.find('/').unwrap_or(text.len())).rev().collect(), Some(name)),
            Token::Any(name) => ((0..=text.len()).rev().collect(), name.as_ref()),
        };
        for len in lengths {
            let mark = captures.len();
            if let Some(name) = name {
                captures.push((name.clone(), text[..len].to_owned()));
            }
            if fit(rest, &text[len..], captures) {
                return true;
            }
            captures.truncate(mark);
        }
        false
    }

    /// For the few forms of expressions that the tests make.
    fn literal_beginning(expression: &str) -> &str {
        let Some(rest) = expression.strip_prefix('^') else { return "" };
        &rest[..rest.find(['(', '[', '$']).unwrap_or(rest.len())]
    }

    fn host_fits(pattern: &str, host: &str) -> bool {
        match pattern.strip_prefix('*') {
            Some(ending) => host.ends_with(ending),
            None => pattern == host,
        }
    }

    /// Returns every matching candidate, with its rank; the first is taken.
    pub(super) fn find(kind: RouterKind, routes: &[TestRoute], request: &TestRequest) -> (Outcome, Captures) {
        let mut fitting = Vec::new();
        let mut allow = MethodSet::NONE;
        let mut answers_405 = false;
        for (number, route) in routes.iter().enumerate().filter(|(_, route)| route.enabled) {
            let listener = route.listeners.is_empty() || route.listeners.contains(&request.listener);
            let by_hosts: Vec<Option<&String>> = match route.hosts.is_empty() {
                true => vec![None],
                false => route.hosts.iter().filter(|host| host_fits(host, &request.host)).map(Some).collect(),
            };
            for (order, uri) in route.uris.iter().enumerate() {
                let expression = uri.strip_prefix('~');
                let cut =
                    uri.find(|c| c == '*' || (c == ':' && kind.has_parameters())).or(expression.map(|_| 0));
                let key = match expression {
                    Some(expression) => literal_beginning(expression),
                    None => &uri[..cut.unwrap_or(uri.len())],
                };
                let mut captures = Captures::new();
                let fits = match cut {
                    _ if expression.is_some() => {
                        let regex = regex::Regex::new(expression.unwrap_or_default()).expect("an expression");
                        let found = regex.captures(&request.path);
                        for at in 1..regex.captures_len() {
                            let group = found.as_ref().and_then(|found| found.get(at));
                            captures.extend(group.map(|group| (at.to_string(), group.as_str().to_owned())));
                        }
                        found.is_some()
                    }
                    None => *uri == request.path,
                    Some(_) => {
                        request.path.starts_with(key) && fit(&tokens(uri), &request.path, &mut captures)
                    }
                };
                if !fits || !listener || by_hosts.is_empty() {
                    continue;
                }
                let methods = MethodSet::of_names(&route.methods);
                if !methods.contains(request.method) {
                    allow = allow.union(methods);
                    answers_405 |= route.method_not_allowed;
                    continue;
                }
                for host in &by_hosts {
                    // No host last, exact hosts first, longer endings before shorter ones.
                    let host_rank = match host {
                        _ if kind != HOST_URI => (0, Reverse(0)),
                        None => (2, Reverse(0)),
                        Some(host) => (usize::from(host.starts_with('*')), Reverse(host.len())),
                    };
                    let priority = Reverse(route.priority);
                    let uri_rank = match kind {
                        ORDERED => (false, Reverse(0), priority, Reverse(0)),
                        _ => (cut.is_some(), Reverse(key.len()), priority, Reverse(uri.len())),
                    };
                    fitting.push((host_rank, uri_rank, number, order, captures.clone()));
                }
            }
        }
        match fitting.into_iter().min() {
            Some((_, _, number, _, captures)) => (Outcome::Route(number as u32), captures),
            None if answers_405 => (Outcome::MethodNotAllowed(allow), Captures::new()),
            None => (Outcome::NotFound, Captures::new()),
        }
    }
}

/// Patterns over so few letters that they collide.
fn pattern() -> impl Strategy<Value = String> {
    let segment = prop_oneof![4 => "[ab.]{0,2}", 1 => ":[xy]", 1 => Just("*".to_owned()), 1 => "\\*[xy]", 1 => "[ab]\\*", 1 => "[ab]\\*[ab]", 1 => "a:b"];
    prop_oneof![
        20 => prop::collection::vec(segment, 1..5).prop_map(|segments| format!("/{}", segments.join("/"))),
        1 => Just("*".to_owned()),
    ]
}

/// A pattern that may be an expression. They take long to compile, so few tests have them.
fn pattern_or_expression() -> impl Strategy<Value = String> {
    prop_oneof![
        3 => pattern(),
        1 => "~\\^/[ab]{0,2}\\([ab]\\+\\)",
        1 => "~\\(/[ab]\\)(\\$|\\(b\\)\\?x?)",
    ]
}

fn host_pattern() -> impl Strategy<Value = String> {
    "\\*?[ab.]{0,3}".prop_filter("a host is not empty", |text| !text.is_empty())
}

fn method_names() -> impl Strategy<Value = Vec<String>> {
    prop_oneof![3 => Just(Vec::new()), 1 => Just(strings(&["GET"])), 1 => Just(strings(&["PUT", "POST"]))]
}

prop_compose! {
    fn any_route()(
        uris in prop::collection::vec(pattern(), 1..3),
        hosts in prop_oneof![Just(Vec::new()), prop::collection::vec(host_pattern(), 1..3)],
        methods in method_names(),
        priority in 0i64..3,
        listeners in prop_oneof![4 => Just(Vec::new()), 1 => Just(vec![1])],
        method_not_allowed in prop::bool::weighted(0.2),
        enabled in prop::bool::weighted(0.9),
    ) -> TestRoute {
        TestRoute { uris, hosts, methods, priority, listeners, method_not_allowed, enabled, ..route(&[]) }
    }
}

prop_compose! {
    fn any_request()(
        method in prop_oneof![Just(Method::Get), Just(Method::Put), Just(Method::Other)],
        host in "[ab.]{1,4}",
        path in "(/[ab.:x]{0,2}){0,5}",
        listener in 0u16..2,
    ) -> TestRequest {
        TestRequest { method, listener, ..get(&host, &path) }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_the_naive_matcher(
        routes in prop::collection::vec(any_route(), 0..10),
        requests in prop::collection::vec(any_request(), 1..10),
    ) {
        for kind in ALL_KINDS {
            for request in &requests {
                prop_assert_eq!(look_up(kind, &routes, request), naive::find(kind, &routes, request), "{:?} {:?}", kind, request);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 30, ..ProptestConfig::default() })]

    #[test]
    fn expressions_agree_with_the_naive_matcher(
        patterns in prop::collection::vec((pattern_or_expression(), 0i64..3), 1..8),
        requests in prop::collection::vec(any_request(), 1..10),
    ) {
        let routes: Vec<TestRoute> =
            patterns.iter().map(|(pattern, priority)| route(&[pattern]).priority(*priority)).collect();
        for kind in ALL_KINDS {
            let router = compile(kind, &routes);
            for request in &requests {
                prop_assert_eq!(find(&router, request), naive::find(kind, &routes, request), "{:?} {:?}", kind, request);
            }
        }
    }
}

/// Routes by number, with their order.
type Slots = BTreeMap<u32, (u64, TestRoute)>;

/// Checks a router against one that is compiled from the same routes and against the naive matcher.
fn check_holds(kind: RouterKind, router: &Router, slots: &Slots, requests: &[TestRequest]) {
    let inputs = slots.iter().map(|(number, (order, route))| (*number, *order, route.input()));
    let compiled = Router::compile(kind, inputs);
    assert_eq!(router.answer_405, compiled.answer_405);
    assert_eq!(router.uris.is_empty(), compiled.uris.is_empty());
    assert_eq!(router.hosts.is_empty(), compiled.hosts.is_empty());
    let mut in_order: Vec<(u64, u32, &TestRoute)> =
        slots.iter().map(|(number, (order, route))| (*order, *number, route)).collect();
    in_order.sort_by_key(|(order, number, _)| (*order, *number));
    let routes: Vec<TestRoute> = in_order.iter().map(|(_, _, route)| (*route).clone()).collect();
    for request in requests {
        let expected = match naive::find(kind, &routes, request) {
            (Outcome::Route(at), captures) => (Outcome::Route(in_order[at as usize].1), captures),
            other => other,
        };
        assert_eq!(find(&compiled, request), expected, "compiled, {kind:?} {request:?} {slots:#?}");
        assert_eq!(find(router, request), expected, "changed, {kind:?} {request:?} {slots:#?}");
    }
}

/// A number, and the order and route that take it; none leaves it free.
fn any_edit() -> impl Strategy<Value = (u32, Option<(u64, TestRoute)>)> {
    (0u32..8, prop::option::weighted(0.7, (0u64..4, any_route())))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn changes_lead_where_compiling_leads(
        batches in prop::collection::vec(prop::collection::vec(any_edit(), 1..4), 1..10),
        requests in prop::collection::vec(any_request(), 1..6),
    ) {
        for kind in ALL_KINDS {
            let mut slots = Slots::new();
            let mut router = Router::compile(kind, []);
            let mut generations = Vec::new();
            for batch in &batches {
                let mut now = slots.clone();
                let pairs: Vec<_> = batch
                    .iter()
                    .map(|(number, after)| {
                        let before = match after {
                            Some(route) => now.insert(*number, route.clone()),
                            None => now.remove(number),
                        };
                        (*number, before, after)
                    })
                    .collect();
                let changes: Vec<Change<'_>> = pairs
                    .iter()
                    .map(|(number, before, after)| Change {
                        number: *number,
                        before: before.as_ref().map(|(order, route)| (*order, route.input())),
                        after: after.as_ref().map(|(order, route)| (*order, route.input())),
                    })
                    .collect();
                let changed = router.changed(&changes);
                generations.push((std::mem::replace(&mut router, changed), std::mem::replace(&mut slots, now)));
            }
            generations.push((router, slots));
            // Earlier routers are unchanged.
            for (router, slots) in &generations {
                check_holds(kind, router, slots, &requests);
            }
        }
    }
}

#[test]
fn many_routes_compile_into_little_memory() {
    let routes: Vec<TestRoute> = (0..20_000)
        .map(|n| route(&[&format!("/service{}/v{n}/*", n % 100)]).hosts(&[&format!("h{n}.example.com")]))
        .collect();
    let router = compile(HOST_URI, &routes);
    assert_eq!(
        router.find(&get("h777.example.com", "/service77/v777/x"), &mut Params::new()),
        Outcome::Route(777)
    );
    let bytes = router.memory_bytes();
    assert!(bytes < 300 * routes.len(), "{} bytes a route", bytes / routes.len());
    let routes: Vec<TestRoute> = (0..20_000).map(|n| route(&[&format!("/api/v1/svc{n:05}/*")])).collect();
    let bytes = compile(HOST_URI, &routes).memory_bytes();
    assert!(bytes < 160 * routes.len(), "{} bytes a route", bytes / routes.len());
}
