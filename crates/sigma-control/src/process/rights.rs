//! The rights of the process: its user, its limits, its folder.

use std::fs;
use std::io;

use rustix::process::{
    DumpableBehavior, Gid, Resource, Rlimit, Uid, chdir, geteuid, getrlimit, getuid, set_dumpable_behavior,
    setrlimit,
};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, configure_capability_in_ambient_set, set_capabilities,
    set_keep_capabilities, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use sigma_config::process::Process;

/// Why the process cannot run as the settings say.
#[derive(Debug, thiserror::Error)]
#[error("`process.{setting}`: {reason}")]
pub struct RightsError {
    setting: &'static str,
    reason: String,
}

impl RightsError {
    fn new(setting: &'static str, reason: impl ToString) -> RightsError {
        RightsError { setting, reason: reason.to_string() }
    }
}

/// Takes the limits, the folder and the user that the settings name. Each thread has its own user, which those that it
/// starts get too: so this is to be called while there is but one.
///
/// # Errors
/// Returns an error if one of them cannot be had; the process is not to go on then.
pub fn confine(settings: &Process) -> Result<(), RightsError> {
    limit(settings)?;
    if let Some(folder) = &settings.working_folder {
        chdir(folder)
            .map_err(|error| RightsError::new("working_folder", format!("{}: {error}", folder.display())))?;
    }
    match &settings.user {
        Some(user) => become_user(user, settings.group.as_deref()),
        None if settings.group.is_some() => Err(RightsError::new("group", "it needs `process.user`")),
        None => Ok(()),
    }?;
    harden(settings)
}

/// Gives up what no gateway needs: privileges of programs that it executes (`no_new_privs`), core dumps and debuggers.
/// To be called while there is one thread, and after a change of the user, which the system responds with a default.
///
/// # Errors
/// Returns an error if the system refuses that.
pub fn harden(settings: &Process) -> Result<(), RightsError> {
    let failed = |error| RightsError::new("core_dumps", error);
    keep_low_ports();
    set_no_new_privs(true).map_err(|error| RightsError::new("user", format!("no_new_privs: {error}")))?;
    let dumpable = match settings.core_dumps {
        true => DumpableBehavior::Dumpable,
        false => DumpableBehavior::NotDumpable,
    };
    set_dumpable_behavior(dumpable).map_err(failed)
}

/// Passes the right to bind low ports to successors, where the file of the program has it (`setcap`): the system gives it to
/// none that such a process executes from now on.
fn keep_low_ports() {
    let ports = CapabilitySet::NET_BIND_SERVICE;
    let Ok(own) = capabilities(None) else { return };
    if geteuid().is_root() || !own.permitted.contains(ports) {
        return;
    }
    let sets = CapabilitySets { inheritable: own.inheritable | ports, ..own };
    let passed = set_capabilities(None, sets).and_then(|()| configure_capability_in_ambient_set(ports, true));
    if let Err(error) = passed {
        tracing::debug!(%error, "after an upgrade, the gateway cannot bind new ports below 1024");
    }
}

fn limit(settings: &Process) -> Result<(), RightsError> {
    if let Some(files) = settings.max_fds {
        let limit = Rlimit { current: Some(files), maximum: Some(files) };
        setrlimit(Resource::Nofile, limit).map_err(|error| {
            let most = getrlimit(Resource::Nofile).maximum;
            let most = most.map_or("no limit".to_owned(), |most| most.to_string());
            RightsError::new("max_fds", format!("{error}: the maximum of this user is {most}"))
        })?;
    }
    if let Some(bytes) = settings.core_bytes {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        setrlimit(Resource::Core, limit).map_err(|error| RightsError::new("core_bytes", error))?;
    }
    Ok(())
}

fn become_user(user: &str, group: Option<&str>) -> Result<(), RightsError> {
    let account = account(user).map_err(|reason| RightsError::new("user", reason))?;
    let gid = match group {
        Some(group) => group_number(group).map_err(|reason| RightsError::new("group", reason))?,
        None => account.gid,
    };
    if getuid().as_raw() == account.uid {
        return Ok(());
    }
    if !getuid().is_root() {
        return Err(RightsError::new(
            "user",
            "only root can become another user; remove it, or start as root",
        ));
    }
    change(account.uid, gid).map_err(|error| RightsError::new("user", error))
}

fn change(uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    set_keep_capabilities(true)?;
    set_thread_groups(&[gid])?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)?;
    // Ports below 1024 may come with a reload, and are bound by the process that an upgrade starts.
    let ports = CapabilitySet::NET_BIND_SERVICE;
    set_capabilities(None, CapabilitySets { effective: ports, permitted: ports, inheritable: ports })?;
    configure_capability_in_ambient_set(ports, true)?;
    Ok(())
}

/// A user.
struct Account {
    uid: u32,
    gid: u32,
}

/// The user of this name or number.
fn account(user: &str) -> Result<Account, String> {
    let lines = table("/etc/passwd")?;
    let found = entries(&lines).find(|fields| fields.first() == Some(&user) || fields.get(2) == Some(&user));
    let numbers = found.and_then(|fields| Some((fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?)));
    match (numbers, user.parse()) {
        (Some((uid, gid)), _) => Ok(Account { uid, gid }),
        // A container may have no such file: the group has the same number then.
        (None, Ok(number)) => Ok(Account { uid: number, gid: number }),
        (None, Err(_)) => Err(format!("/etc/passwd has no user {user}; name another user, or a user id")),
    }
}

/// The group of this name or number.
fn group_number(group: &str) -> Result<u32, String> {
    if let Ok(number) = group.parse() {
        return Ok(number);
    }
    let lines = table("/etc/group")?;
    let found = entries(&lines).find(|fields| fields.first() == Some(&group));
    found
        .and_then(|fields| fields.get(2)?.parse().ok())
        .ok_or_else(|| format!("/etc/group has no group {group}; name another group, or a group id"))
}

fn table(path: &str) -> Result<String, String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("{path}: {error}")),
        text => Ok(text.unwrap_or_default()),
    }
}

fn entries(table: &str) -> impl Iterator<Item = Vec<&str>> {
    table.lines().map(|line| line.split(':').collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_have_names_and_numbers() {
        let root = account("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(account("0").unwrap().gid, 0);
        assert_eq!(account("54321").unwrap().gid, 54_321, "a number needs no entry");
        assert!(account("no-such-user").err().unwrap().contains("no-such-user"));
        assert_eq!((group_number("root"), group_number("77")), (Ok(0), Ok(77)));
        assert!(group_number("no-such-group").is_err());
    }

    #[test]
    fn missing_rights_are_named() {
        let check = |process: Process, words: &str| {
            let error = confine(&process).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        let none = Process::default();
        check(
            Process { working_folder: Some("/no/such/folder".into()), ..none.clone() },
            "process.working_folder",
        );
        check(Process { user: Some("no-such-user".into()), ..none.clone() }, "process.user");
        check(Process { group: Some("root".into()), ..none.clone() }, "process.group");
        assert!(confine(&none).is_ok());
    }
}
