//! The router: the tree finds the same as a search through all patterns, and one that grew route by route
//! finds the same as one compiled at once.
//!
//! The input is text: one pattern a line, the last line the path. Patterns with parameters are compiled and looked up
//! too, but only plain ones and those with one `*` at their end have a response that is plain enough to compare.

#![no_main]

use std::net::IpAddr;

use libfuzzer_sys::fuzz_target;
use sigma_schema::cidr::CidrSet;
use sigma_schema::expr::{Expr, VarName, VarValue, Variables};
use sigma_http::Method;
use sigma_proxy::route::normalize::{UriOptions, normalize_path, normalized};
use sigma_proxy::route::{Change, MethodSet, Outcome, Params, Request, RouteInput, Router, RouterKind};

struct Get<'a>(&'a [u8]);

impl Request for Get<'_> {
    fn method(&self) -> Method {
        Method::Get
    }
    fn path(&self) -> &[u8] {
        self.0
    }
    fn host(&self) -> &[u8] {
        b"_"
    }
    fn raw_host(&self) -> &[u8] {
        b""
    }
    fn remote_addr(&self) -> Option<IpAddr> {
        None
    }
    fn listener(&self) -> u16 {
        0
    }
    fn content_type(&self) -> Option<&[u8]> {
        None
    }
    fn accept(&self) -> Option<&[u8]> {
        None
    }
    fn variables(&self) -> &dyn Variables {
        self
    }
}

impl Variables for Get<'_> {
    fn get(&self, _: &VarName) -> Option<VarValue<'_>> {
        None
    }
}

fn route<'a>(uri: &'a str, vars: &'a Expr) -> RouteInput<'a> {
    RouteInput {
        uris: vec![uri],
        hosts: Vec::new(),
        methods: MethodSet::ANY,
        priority: 0,
        remote_addrs: CidrSet::default(),
        vars,
        filter: None,
        consumes: &[],
        produces: &[],
        method_not_allowed: false,
        listeners: Vec::new(),
        internal: false,
        enabled: true,
    }
}

/// The whole path first, then the longest prefix; of equals the first.
fn expected(patterns: &[&str], path: &[u8]) -> Outcome {
    let rank = |pattern: &str| match pattern.strip_suffix('*') {
        None => (pattern.as_bytes() == path).then_some(usize::MAX),
        Some(prefix) => path.starts_with(prefix.as_bytes()).then_some(prefix.len()),
    };
    let fitting = patterns.iter().enumerate().filter_map(|(number, pattern)| Some((rank(pattern)?, number)));
    let best = fitting.reduce(|best, next| if next.0 > best.0 { next } else { best });
    best.map_or(Outcome::NotFound, |(_, number)| Outcome::Route(number as u32))
}

fuzz_target!(|text: &str| {
    let mut lines: Vec<&str> = text.split('\n').collect();
    let Some(raw) = lines.pop() else { return };
    let patterns: Vec<&str> = lines.into_iter().filter(|line| line.starts_with('/')).collect();
    let Ok(path) = normalized(raw.as_bytes(), UriOptions::default()) else { return };
    let path = path.matched();
    let mut again = Vec::new();
    assert!(path.starts_with(b"/"), "a normal path is absolute");
    // Escapes are decoded once: a path that still has one may change when normalised again.
    if !path.iter().any(|byte| b"%?#".contains(byte)) {
        assert_eq!(
            normalize_path(path, &mut again).map(|()| again.as_slice()),
            Ok(path),
            "normal stays normal"
        );
    }
    let always = Expr::default();
    let routes = || {
        let numbered = (0..).zip(0..).zip(&patterns);
        numbered.map(|((number, order), uri)| (number, order, route(uri, &always)))
    };
    let plain =
        patterns.iter().all(|uri| !uri.contains(':') && !uri.as_bytes()[..uri.len() - 1].contains(&b'*'));
    for kind in
        [RouterKind::RadixtreeUri, RouterKind::RadixtreeUriWithParameter, RouterKind::RadixtreeHostUri]
    {
        let router = Router::compile(kind, routes());
        let mut params = Params::default();
        let found = router.find(&Get(path), &mut params);
        if plain && kind == RouterKind::RadixtreeUri {
            assert_eq!(found, expected(&patterns, path), "{patterns:?} for {raw:?}");
        }
        let grown = routes().fold(Router::compile(kind, []), |router, (number, order, input)| {
            router.changed(&[Change { number, before: None, after: Some((order, input)) }])
        });
        assert_eq!(grown.find(&Get(path), &mut params), found, "{patterns:?} for {raw:?}");
        let emptied = routes().fold(grown, |router, (number, order, input)| {
            router.changed(&[Change { number, before: Some((order, input)), after: None }])
        });
        assert_eq!(emptied.memory_bytes(), 0, "nothing is left of {patterns:?}");
        assert!(params.iter().all(|(_, range)| range.end <= path.len()), "a capture beyond the path");
    }
});
