//! Closes the routes of a converted configuration that the check of configurations refuses.
//!
//! The gateway would not start with them. A converted configuration without the refused part may be more open than the
//! original.

use serde_json::{Map, Value, json};
use sigma_schema::problem::Problem;

use super::Import;
use super::report::Verdict;

/// The fields of a route that stay: its conditions.
const CONDITIONS: [&str; 10] =
    ["id", "priority", "uri", "uris", "host", "hosts", "methods", "vars", "listeners", "internal"];

impl Import {
    /// Closes the routes with these problems, and adds a remark for each. Returns the problems of other parts.
    pub fn close_refused(&mut self, problems: &[Problem]) -> Vec<Problem> {
        let mut left = Vec::new();
        for problem in problems {
            let routes = match element(&problem.pointer) {
                Some(("routes", at)) => vec![at],
                Some(("upstreams", at)) => self.readers_of(at),
                _ => Vec::new(),
            };
            if routes.is_empty() {
                left.push(problem.clone());
            }
            for at in routes {
                self.close(at, problem);
            }
        }
        self.drop_refused(problems);
        left
    }

    /// The routes of an upstream.
    fn readers_of(&self, upstream: usize) -> Vec<usize> {
        let id = &self.document["upstreams"][upstream]["id"];
        let routes = self.document["routes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_reader = |route: &Value| route["upstream_id"] == *id;
        routes.iter().enumerate().filter(|(_, route)| is_reader(route)).map(|(at, _)| at).collect()
    }

    fn close(&mut self, at: usize, problem: &Problem) {
        let Some(route) = self.document["routes"].get_mut(at).and_then(Value::as_object_mut) else { return };
        let mut closed: Map<String, Value> = route
            .iter()
            .filter(|(name, _)| CONDITIONS.contains(&name.as_str()))
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        let part = problem.pointer.split_once("].").map_or("", |(_, rest)| rest);
        if part.starts_with("vars") {
            // Without the condition more requests are closed, never fewer.
            closed.remove("vars");
        }
        let desc: String = format!("closed: {}", problem.message).chars().take(200).collect();
        closed.insert("desc".to_owned(), desc.into());
        closed.insert("plugins".to_owned(), json!({"respond": {"status": 503}}));
        *route = closed;
        let place = self.places.get(at).copied().unwrap_or_default();
        let text = format!(
            "Sigma does not accept the result ({}: {}); the route is closed: write it by hand",
            problem.pointer, problem.message
        );
        self.report.add_guard(place, "", Verdict::NotPossible, text);
    }

    /// Removes the refused upstreams, which no route reads any more.
    fn drop_refused(&mut self, problems: &[Problem]) {
        let refused: Vec<usize> = problems
            .iter()
            .filter_map(|problem| element(&problem.pointer).filter(|(list, _)| *list == "upstreams"))
            .map(|(_, at)| at)
            .collect();
        if let Some(list) = self.document["upstreams"].as_array_mut().filter(|_| !refused.is_empty()) {
            let mut at = 0;
            list.retain(|_| {
                at += 1;
                !refused.contains(&(at - 1))
            });
        }
    }
}

/// The list and the number of a pointer such as `routes[3].plugins`.
fn element(pointer: &str) -> Option<(&str, usize)> {
    let (list, rest) = pointer.split_once('[')?;
    let (number, _) = rest.split_once(']')?;
    Some((list, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::super::report::Report;
    use super::super::source::SourceLine;
    use super::*;

    #[test]
    fn refused_routes_are_closed() {
        let document = json!({
            "upstreams": [{"id": "good"}, {"id": "bad"}],
            "routes": [
                {"id": "a", "uri": "/a", "priority": 3, "plugins": {"x": {}}, "upstream_id": "good"},
                {"id": "b", "uri": "/b", "priority": 2, "upstream_id": "bad"},
                {"id": "c", "uri": "/c", "priority": 1, "upstream_id": "good"},
            ],
        });
        let places = vec![SourceLine::default(); 3];
        let mut import = Import { document, report: Report::default(), probes: Vec::new(), places };
        let problems = [
            Problem::new("routes[0].plugins.x", "plugin", "is wrong"),
            Problem::new("upstreams[1].nodes", "nodes", "are wrong"),
            Problem::new("listeners[0]", "address", "is wrong"),
        ];
        let left = import.close_refused(&problems);
        assert_eq!(left.len(), 1);
        let respond = json!({"respond": {"status": 503}});
        let routes = &import.document["routes"];
        assert_eq!([&routes[0]["plugins"], &routes[1]["plugins"]], [&respond, &respond]);
        assert_eq!(routes[0]["uri"], "/a");
        assert_eq!(routes[1].get("upstream_id"), None);
        assert_eq!(routes[2]["upstream_id"], "good");
        assert_eq!(import.document["upstreams"], json!([{"id": "good"}]));
        assert!(import.report.has_open_guards());
    }
}
