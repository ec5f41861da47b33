//! The target and the method of a request: which are served, and the normal form that routes, plugins and nodes
//! see.

use sigma_config::settings::Methods;
use sigma_http::{Fault, FaultKind, Method, RequestHead, TargetForm};
use sigma_plugin::variables::percent_encode_path;

use crate::route::normalize::{self, BadPath, NormalPath};
use crate::snapshot::{Rewrite, Snapshot};

/// Checks that this gateway serves the method.
///
/// # Errors
/// Returns an error if it is not.
pub(super) fn check_method(head: &RequestHead, snapshot: &Snapshot) -> Result<(), Fault> {
    match head.method {
        Method::Connect => Err(Fault::new(FaultKind::MethodRefused, "CONNECT is not served")),
        Method::Other if Method::is_miscased(head.method_token()) => {
            Err(Fault::new(FaultKind::BadRequest, "the method is not in capital letters"))
        }
        Method::Other if snapshot.settings.router.methods == Methods::Known => {
            Err(Fault::new(FaultKind::MethodRefused, "the method is unknown"))
        }
        _ => Ok(()),
    }
}

/// Replaces the received path with its canonical form, or with one without double slashes, if the settings say so.
///
/// # Errors
/// Returns an error if no route may see the path.
pub(super) fn canonicalize(head: &mut RequestHead, snapshot: &Snapshot) -> Result<(), Fault> {
    let options = snapshot.uri_options;
    if !(options.is_canonical || options.merges_slashes) || head.form == TargetForm::Asterisk {
        return Ok(());
    }
    let path = match options.merges_slashes {
        true => normalize::merged(head.raw_path()),
        false => normalize::canonical(head.raw_path(), options).map_err(refusal)?,
    };
    if let Some(mut target) = path {
        if let Some(query) = head.query() {
            target.push(b'?');
            target.extend_from_slice(query);
        }
        head.canonicalize(&target);
    }
    Ok(())
}

/// Returns the path that routes are matched against.
///
/// # Errors
/// Returns an error if no route may see the path.
pub(super) fn normal_path<'h>(head: &'h RequestHead, snapshot: &Snapshot) -> Result<NormalPath<'h>, Fault> {
    if head.form == TargetForm::Asterisk {
        // It asks about the server as a whole: routed as the root, and forwarded unchanged.
        return Ok(NormalPath { uri: b"/"[..].into(), shown: None });
    }
    normalize::normalized(head.raw_path(), snapshot.uri_options).map_err(refusal)
}

fn refusal(bad: BadPath) -> Fault {
    Fault::new(FaultKind::BadPath, bad.reason())
}

/// Writes the rewritten path, percent-encoded again, and the query as it was.
pub(super) fn rewrite(rewrite: &Rewrite, path: &NormalPath<'_>, query: Option<&[u8]>, out: &mut Vec<u8>) {
    let replaced = rewrite.regex.replace_all(&path.uri, &rewrite.replacement[..]);
    if replaced.first() != Some(&b'/') {
        out.push(b'/');
    }
    percent_encode_path(&replaced, out);
    if let Some(query) = query {
        out.push(b'?');
        out.extend_from_slice(query);
    }
}
