//! The matcher `file`: whether the path of a request is a file.
//!
//! Routes cannot ask for files, but the plugin static-files can. So the branch of files and the branch of other paths
//! become one decision, once for each branch that other paths may take.

use serde_json::{Map, Value, json};

use super::super::decision::{Decision, Target};
use super::super::logic::group;
use super::super::remarks::Remarks;
use super::matcher::Condition;

/// A test that a branch has passed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tested {
    /// The line of the matcher, which tells tests apart.
    pub(super) line: u32,
    /// Whether the file exists.
    pub(super) is_there: bool,
}

impl Tested {
    /// Returns the test of a condition that is one.
    pub(super) fn of(condition: &Condition) -> Option<Tested> {
        match condition {
            Condition::File(line) => Some(Tested { line: *line, is_there: true }),
            Condition::Not(inner) => match **inner {
                Condition::File(line) => Some(Tested { line, is_there: false }),
                _ => None,
            },
            _ => None,
        }
    }
}

/// A branch with its decision.
pub(super) struct Finished {
    pub(super) tested: Option<Tested>,
    /// The test whose other requests come to the branch too.
    pub(super) after: Option<u32>,
    /// The folder of files.
    pub(super) root: Option<String>,
    pub(super) decision: Decision,
}

/// Joins each branch that has passed a test with the branches of the other requests.
pub(super) fn join(branches: Vec<Finished>, remarks: &mut Remarks) -> Vec<Decision> {
    let mut out = Vec::new();
    for (at, branch) in branches.iter().enumerate() {
        let Some(tested) = &branch.tested else {
            out.push(branch.decision.clone());
            continue;
        };
        for other in branches[at + 1..].iter().filter(|other| other.after == Some(tested.line)) {
            match joined(branch, other, tested.is_there) {
                Ok(decision) => {
                    let (there, missing) = match tested.is_there {
                        true => (&branch.decision, &other.decision),
                        false => (&other.decision, &branch.decision),
                    };
                    if matches!(decision.target, Target::Upstream(_))
                        && own_fields(there) != own_fields(missing)
                    {
                        let text = "Files get the response fields of the requests without a file.";
                        remarks.differs(branch.decision.place, text);
                    }
                    out.push(decision);
                }
                Err(reason) => {
                    remarks.closed(branch.decision.place, format!("{reason} The route is closed."));
                    let mut decision = both(&branch.decision, &other.decision, &other.decision);
                    decision.target = Target::Closed(reason.to_owned());
                    out.push(decision);
                }
            }
        }
    }
    out
}

/// The response fields of a decision that its lines set: the date of files is not one of them.
fn own_fields(decision: &Decision) -> Value {
    let mut headers =
        decision.plugins.get("response-rewrite").map_or(Value::Null, |it| it["headers"].clone());
    if let Some(set) = headers.get_mut("set").and_then(Value::as_object_mut) {
        set.remove("Last-Modified");
        if set.is_empty() {
            headers = Value::Null;
        }
    }
    headers
}

/// One decision for the requests of both branches.
fn joined(branch: &Finished, other: &Finished, is_there: bool) -> Result<Decision, &'static str> {
    let (own, rest) = (&branch.decision, &other.decision);
    let (there, missing) = if is_there { (own, rest) } else { (rest, own) };
    let base = |files: &Map<String, Value>, fallback: Value| {
        let mut files = files.clone();
        files.insert("fallback".to_owned(), fallback);
        files
    };
    let has_files = |decision: &Decision| decision.plugins.contains_key("static-files");
    match (&there.target, &missing.target) {
        (Target::Closed(_), _) | (_, Target::Closed(_)) => Ok(closed(own, rest)),
        (Target::Files(files), Target::Upstream(_)) if !has_files(missing) => {
            let mut decision = both(own, rest, missing);
            let files = base(files, json!({"pass": ""}));
            decision.plugins.insert("static-files".to_owned(), Value::Object(files));
            Ok(decision)
        }
        (Target::Files(files), Target::Files(rewritten)) => {
            let path = match rewritten.get("try").and_then(Value::as_array).map(Vec::as_slice) {
                Some([Value::String(path)]) if !path.contains('$') => path.clone(),
                _ => return Err("The paths without a file have files of their own."),
            };
            let mut decision = both(own, rest, there);
            decision.target = Target::Files(base(files, json!({"file": path})));
            Ok(decision)
        }
        (Target::Files(files), Target::Respond { status, body: None, .. }) if *status >= 400 => {
            let mut decision = both(own, rest, there);
            decision.target = Target::Files(base(files, json!({"status": status})));
            Ok(decision)
        }
        (Target::Upstream(_), Target::Respond { status, body: None, .. })
            if *status >= 400 && !has_files(there) =>
        {
            let mut decision = both(own, rest, there);
            let root = branch.root.clone().unwrap_or_default();
            let files =
                json!({"root": root, "hidden": true, "pass_found": true, "fallback": {"status": status}});
            decision.plugins.insert("static-files".to_owned(), files);
            Ok(decision)
        }
        _ => Err("Requests with and without a file have targets that no route has both."),
    }
}

/// A closed decision for the requests of both branches.
fn closed(own: &Decision, rest: &Decision) -> Decision {
    let mut decision = both(own, rest, rest);
    decision.target = Target::Closed("the branch of a file is closed".to_owned());
    decision
}

/// A decision with the action of one, for requests that meet the conditions of both.
fn both(own: &Decision, rest: &Decision, action: &Decision) -> Decision {
    let mut decision = rest.clone();
    decision.place = own.place;
    decision.plugins = action.plugins.clone();
    decision.target = action.target.clone();
    decision.fields = action.fields.clone();
    if decision.paths.is_empty() {
        decision.paths = own.paths.clone();
    } else if decision.paths != own.paths && !own.paths.is_empty() {
        let conditions: Vec<Value> = own.paths.iter().map(super::super::build::path_condition).collect();
        decision.conditions.push(group("OR", conditions));
    }
    if decision.methods.is_empty() {
        decision.methods = own.methods.clone();
    } else if decision.methods != own.methods && !own.methods.is_empty() {
        decision.conditions.push(json!(["request_method", "in", own.methods]));
    }
    for condition in &own.conditions {
        if !decision.conditions.contains(condition) {
            decision.conditions.push(condition.clone());
        }
    }
    decision
}
