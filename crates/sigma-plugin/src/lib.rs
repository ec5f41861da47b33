//! What an extension author needs, and nothing else.
//!
//! A plugin is a [`Kind`] — its name, order, phases, schema, mostly a [`Descriptor`] — and a type that
//! implements [`Plugin`] with the hooks it needs. Its configuration is parsed once, when a configuration is
//! compiled; the instance is immutable and shared by all workers. A hook sees one exchange as a
//! [`Context`] and the world around it as an [`Env`], and answers with a [`Step`].
//!
//! | module | question |
//! |---|---|
//! | [`kind`] | what the gateway asks of a plugin |
//! | [`descriptor`] | the same of a plugin that is compiled in |
//! | [`context`] | what a hook sees and changes of one exchange |
//! | [`step`] | what a hook answers |
//! | [`env`] | what a hook may use: counters, background work, consumers |
//! | [`chain`] | how the plugins of a route run, in which order |
//! | [`consumer`] | who a request is from |
//! | [`credentials`] | what logs and traces hide |
//! | [`login`] | the result of a request's login |
//! | [`machine`] | time and unpredictable bytes |
//! | [`counter`] | numbers that all workers share |
//! | [`legacy`] | what a process leaves to the one that takes its place |
//! | [`body`] | changing a response body while it passes |
//! | [`cache`] | having answers kept and used again |
//! | [`outbound`] | calling other services |
//! | [`owned`] | request fields that plugins set for nodes |
//! | [`personal`] | whose response an exchange gets |
//! | [`pace`] | slowing down what passes |
//! | [`takeover`] | having a connection for itself |
//! | [`dubbo`] | having a node asked in Dubbo |
//! | [`bridge`] | serving upstreams that speak no HTTP |
//! | [`flow`] | the same for sessions over TCP and UDP |
//! | [`docs`] | what is written of a plugin for people |
//! | [`address`] | addresses as text |
//! | [`hex`] | the digits of ids |
//! | [`graphql`] | what a document of GraphQL asks for |
//! | [`facts`] | what the control plane tells plugins of the gateway |
//! | [`resident`] | what plugins do for the process as a whole |
//! | [`traffic`] | sessions by listener, while they are open |

pub mod address;
pub mod body;
mod body_copy;
pub mod body_fields;
pub mod bridge;
pub mod cache;
pub mod chain;
pub mod client_chain;
pub mod consumer;
pub mod context;
pub mod counter;
pub mod credentials;
pub mod descriptor;
pub mod docs;
pub mod dubbo;
pub mod env;
pub mod facts;
pub mod flow;
mod form;
pub mod forwarded;
pub mod geography;
pub mod graphql;
pub mod hex;
mod index;
pub mod json;
pub mod kind;
pub mod legacy;
pub mod login;
pub mod machine;
pub mod meta;
pub mod outbound;
pub mod owned;
pub mod pace;
pub mod personal;
pub mod places;
pub mod record;
pub mod resident;
pub mod roster;
pub mod step;
pub mod takeover;
pub mod traffic;
pub mod variables;

pub use body::{BodyFilter, Frames, Pieces, Transform};
pub use bridge::{Bridge, Far};
pub use chain::{Chain, Entry};
pub use consumer::{Consumer, Consumers, Identity};
pub use context::{Client, Context, Slot};
pub use descriptor::{
    Auth, Build, Configuration, Descriptor, FileAccess, FileMember, Phase, PhaseSet, RunPolicy,
};
pub use env::{Env, Local, Node};
pub use flow::{Flow, FlowChain, FlowPlugin, FlowStep, Session};
pub use kind::Kind;
pub use legacy::Legacy;
pub use owned::{OwnedField, OwnedFields};
pub use resident::{Resident, Residents};
pub use roster::Roster;
pub use step::{BodySource, Reply, ResponseStep, Step, StreamBody};
pub use takeover::Takeover;

/// An instance of a plugin: one configuration, parsed. Hooks run on a worker's thread and must
/// not block it; what takes time answers [`Step::Wait`].
///
/// Only hooks whose phase the [`Kind`] names are called.
pub trait Plugin: Send + Sync {
    /// Before authentication and limits: who is it, what is asked for.
    fn rewrite(&self, _cx: &mut Context, _env: &Env<'_>) -> Step {
        Step::Next
    }

    /// Whether the request may pass.
    fn access(&self, _cx: &mut Context, _env: &Env<'_>) -> Step {
        Step::Next
    }

    /// A node was chosen; once for each attempt.
    fn before_proxy(&self, _cx: &mut Context, _env: &Env<'_>) -> Step {
        Step::Next
    }

    /// The request is about to be sent: a filter for its body, if it is to be changed or seen.
    fn request_filter(&self, _cx: &mut Context, _env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        None
    }

    /// The head of the response is known, [`Context::response`], and has not left yet. Also called
    /// for responses of the gateway itself.
    fn header_filter(&self, _cx: &mut Context, _env: &Env<'_>) -> ResponseStep {
        ResponseStep::Next
    }

    /// After all header filters: a filter for this response's body, if it is to be changed or seen.
    fn body_filter(&self, _cx: &mut Context, _env: &Env<'_>) -> Option<Box<dyn BodyFilter>> {
        None
    }

    /// Whether its log hook looks at some exchanges only, which it chooses in its first hook. It says of each one whether
    /// it asks for its course: [`record::Record::sampled`], [`record::Record::not_sampled`].
    fn samples(&self) -> bool {
        false
    }

    /// The exchange is over; [`Context::record`] is complete.
    fn log(&self, _cx: &mut Context, _env: &Env<'_>) {}

    /// What it would make of a request that an operator asks about and nobody has sent; None if it cannot know.
    /// Nothing may be counted, taken or asked of anybody. What it would change without that, it changes.
    fn foresee(&self, _cx: &mut Context) -> Option<serde_json::Value> {
        None
    }
}
