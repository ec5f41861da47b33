//! Queries of the Admin API to the running gateway.

use serde_json::{Value, json};

use crate::operators::admin::Question;
use crate::operators::control_api::{Inspect, shown};
use crate::operators::nodes::UpstreamNodes;

/// Returns the answer, which is read from published state and waits for nothing.
pub(crate) fn answer(inspect: &dyn Inspect, question: Question) -> Value {
    match question {
        Question::Live => inspect.live(),
        Question::Nodes => {
            let all = inspect.nodes().into_iter();
            all.map(UpstreamNodes::shown).collect()
        }
        Question::Certificates => json!({
            "certificates": inspect.certificates(),
            "orders": inspect.orders().unwrap_or_default(),
        }),
        Question::Revision => shown(&inspect.revisions()),
    }
}
