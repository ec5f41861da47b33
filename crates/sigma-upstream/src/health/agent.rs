//! Agents on nodes, in the protocol of HAProxy's agent-check: one line sets the state of the node.

use std::net::SocketAddr;

use sigma_net::Stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::plan::Agent;
use super::state::{AgentWeight, AgentWish, NodeState};
use crate::endpoint::{Address, Endpoint};

/// The longest line in bytes.
const LINE_MAX: usize = 1024;
/// The number of concurrent requests to agents.
const AT_ONCE: usize = 32;

/// The message of an agent; missing parts stay unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct AgentReport {
    state: Option<NodeState>,
    is_down: Option<bool>,
    weight: Option<AgentWeight>,
    /// The request limit that it wants; 0 for the configured one.
    maxconn: Option<u32>,
}

impl AgentReport {
    /// Parses the words of a line; unknown words are ignored. A word after `#` is a comment.
    fn parse(line: &str) -> AgentReport {
        let mut said = AgentReport::default();
        let line = line.split('#').next().unwrap_or_default();
        for word in line.split([' ', '\t', ',', '\r', '\n']) {
            match word.to_ascii_lowercase().as_str() {
                "ready" => said.state = Some(NodeState::Ready),
                "drain" => said.state = Some(NodeState::Drain),
                "maint" => said.state = Some(NodeState::Maintenance),
                "up" => said.is_down = Some(false),
                "down" | "fail" | "failed" | "stopped" => said.is_down = Some(true),
                word => match word.strip_prefix("maxconn:") {
                    Some(number) => said.maxconn = number.parse().ok().or(said.maxconn),
                    None => said.weight = weight(word).or(said.weight),
                },
            }
        }
        said
    }

    /// Returns the request limit that it wants, if it names one.
    pub(super) fn maxconn(self) -> Option<u32> {
        self.maxconn
    }

    /// Returns the agent's wish after this message and the wish `before`.
    pub(super) fn after(self, before: AgentWish) -> AgentWish {
        AgentWish {
            state: self.state.unwrap_or(before.state),
            is_down: self.is_down.unwrap_or(before.is_down),
            weight: self.weight.unwrap_or(before.weight),
        }
    }
}

/// Parses `75%` of the weight, with or without `weight:` before it, or `weight:30` for an absolute weight.
fn weight(word: &str) -> Option<AgentWeight> {
    let named = word.strip_prefix("weight:");
    match (named.unwrap_or(word).strip_suffix('%'), named) {
        (Some(percent), _) => percent.parse().ok().map(AgentWeight::Percent),
        (None, Some(weight)) => {
            weight.parse().ok().filter(|weight| *weight <= AgentWeight::MAX).map(AgentWeight::Absolute)
        }
        (None, None) => None,
    }
}

/// Contacts the agents of all `targets`. An unreachable agent changes nothing.
pub(super) async fn ask_all(agent: &Agent, targets: Vec<Endpoint>) {
    let mut running = JoinSet::new();
    for endpoint in targets {
        if running.len() >= AT_ONCE {
            running.join_next().await;
        }
        let agent = agent.clone();
        running.spawn(async move {
            if let Ok(Some(said)) = tokio::time::timeout(agent.timeout, ask(&agent, &endpoint)).await {
                endpoint.health.hear(said);
                if said.maxconn.is_some() && !agent.bounds && endpoint.health.is_first_idle_maxconn() {
                    let node = endpoint.name();
                    tracing::warn!(
                        node,
                        "its agent reports `maxconn`, which has no effect; set `limits.max_requests_per_node`"
                    );
                }
            }
        });
    }
    while running.join_next().await.is_some() {}
}

async fn ask(agent: &Agent, endpoint: &Endpoint) -> Option<AgentReport> {
    // A node behind a unix socket has no agent port.
    let Address::Tcp(addr) = &endpoint.addr else { return None };
    let mut stream = Stream::connect_tcp(SocketAddr::new(addr.ip(), agent.port)).await.ok()?;
    if !agent.send.is_empty() {
        stream.write_all(agent.send.as_bytes()).await.ok()?;
        stream.flush().await.ok()?;
    }
    let mut line = Vec::with_capacity(64);
    while !line.contains(&b'\n') && line.len() < LINE_MAX {
        let mut piece = [0; 128];
        match stream.read(&mut piece).await.ok()? {
            0 => break,
            read => line.extend_from_slice(&piece[..read]),
        }
    }
    let first = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    Some(AgentReport::parse(&String::from_utf8_lossy(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_agents() {
        let said = |line: &str, state: Option<NodeState>, is_down: Option<bool>, weight| {
            assert_eq!(
                AgentReport::parse(line),
                AgentReport { state, is_down, weight, maxconn: None },
                "{line:?}"
            );
        };
        let check = |line, state, is_down, percent: Option<u8>| {
            said(line, state, is_down, percent.map(AgentWeight::Percent));
        };
        check("", None, None, None);
        check("75%", None, None, Some(75));
        check("weight:30% up\r\n", None, Some(false), Some(30));
        check("drain", Some(NodeState::Drain), None, None);
        check("Maint,down #the disk is full, 5%", Some(NodeState::Maintenance), Some(true), None);
        check("ready up 100%", Some(NodeState::Ready), Some(false), Some(100));
        check("fail", None, Some(true), None);
        check("300% -1% maxconn:x nonsense weight: weight:257 7 weight:-1", None, None, None);
        assert_eq!(AgentReport::parse("maxconn:5 up maxconn:").maxconn, Some(5));
        said("weight:7", None, None, Some(AgentWeight::Absolute(7)));
        said("Weight:256 down", None, Some(true), Some(AgentWeight::Absolute(256)));
    }

    #[test]
    fn missing_parts_stay_unchanged() {
        let before = AgentWish { state: NodeState::Drain, is_down: true, weight: AgentWeight::Absolute(20) };
        assert_eq!(AgentReport::default().after(before), before);
        let ready = AgentReport { state: Some(NodeState::Ready), ..AgentReport::default() };
        assert_eq!(ready.after(before), AgentWish { state: NodeState::Ready, ..before });
    }
}
