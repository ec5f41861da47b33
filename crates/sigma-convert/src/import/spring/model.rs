//! A route as the file says it.

use super::super::nodes::Node;
use super::super::source::SourceLine;
use super::definition::Definition;

/// A route of the file.
pub(super) struct Route<'n> {
    pub id: String,
    pub place: SourceLine,
    pub uri: String,
    pub order: i64,
    pub predicates: Vec<Definition>,
    pub filters: Vec<Definition>,
    pub metadata: Option<&'n Node>,
}

impl Route<'_> {
    /// The patterns of the route's paths.
    pub(super) fn paths(&self) -> Vec<String> {
        let of_path = self.predicates.iter().filter(|it| it.name.eq_ignore_ascii_case("path"));
        of_path.flat_map(|it| it.many("patterns")).collect()
    }
}
