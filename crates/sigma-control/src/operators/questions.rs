//! Queries of the Admin API to the running gateway.

use serde_json::{Value, json};

use crate::operators::admin::ProcessQuery;
use crate::operators::control_api::{Inspect, shown};
use crate::operators::nodes::UpstreamNodes;

/// Returns the response, which is read from published state and waits for nothing.
pub(crate) fn answer(inspect: &dyn Inspect, question: ProcessQuery) -> Value {
    match question {
        ProcessQuery::Live => inspect.live(),
        ProcessQuery::Nodes => {
            let all = inspect.nodes().into_iter();
            all.map(UpstreamNodes::shown).collect()
        }
        ProcessQuery::Certificates => json!({
            "certificates": inspect.certificates(),
            "orders": inspect.orders().unwrap_or_default(),
        }),
        ProcessQuery::Revision => shown(&inspect.revisions()),
    }
}
