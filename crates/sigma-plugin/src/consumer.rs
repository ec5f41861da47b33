//! Consumers, their credentials, and the index that finds them.

use std::any::Any;
use std::sync::Arc;

use crate::descriptor::inline_upstream_key;
use crate::index::Index;
use crate::{Context, Entry, Resource};

/// A compiled consumer.
#[derive(Debug, Default)]
pub struct Consumer {
    /// Its name.
    pub name: Box<str>,
    /// The consumer group that it names.
    pub group_id: Option<Box<str>>,
    /// The group does not exist; requests of the consumer get 503.
    pub group_missing: bool,
    /// The consumer or its group is invalid; requests of the consumer get 503.
    pub closed: bool,
    /// Its label `custom_id`.
    pub custom_id: Option<Box<str>>,
    /// Its labels.
    pub labels: Vec<(Box<str>, Box<str>)>,
    /// The resource as it was written; shared with the configuration.
    pub resource: Option<Resource>,
    /// Plugins of its group and its own, without those that only authenticate.
    pub entries: Box<[Arc<Entry>]>,
}

/// A way to authenticate as a consumer: by its own data, or by a credential.
#[derive(Clone)]
pub struct Identity {
    /// The consumer.
    pub consumer: Arc<Consumer>,
    /// The credential, if that authenticates.
    pub credential: Option<Box<str>>,
    /// The result of [`crate::Auth::parse`].
    pub data: Arc<dyn Any + Send + Sync>,
}

/// Data of the anonymous consumer.
struct Anonymous;

impl Identity {
    /// Returns the identity of an anonymous consumer.
    pub fn anonymous(consumer: Arc<Consumer>) -> Identity {
        Identity { consumer, credential: None, data: Arc::new(Anonymous) }
    }

    /// Returns true for an anonymous consumer: the request is not authenticated.
    pub fn is_anonymous(&self) -> bool {
        self.data.is::<Anonymous>()
    }

    /// Returns the data that the plugin parsed. None if the data belong to another plugin.
    pub fn data<T: Any>(&self) -> Option<&T> {
        self.data.downcast_ref()
    }

    /// Returns the key of an upstream nested in the consumer's configuration of `plugin`; see
    /// [`crate::Auth::upstreams`].
    pub fn upstream_key(&self, plugin: &str, upstream: &str) -> String {
        let consumer = &self.consumer.name;
        let resource = match &self.credential {
            Some(id) => format!("/apisix/consumers/{consumer}/credentials/{id}"),
            None => format!("/apisix/consumers/{consumer}"),
        };
        inline_upstream_key(&resource, plugin, upstream)
    }
}

impl std::fmt::Debug for Identity {
    /// Omits the data, which may be secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = f.debug_struct("Identity");
        out.field("consumer", &self.consumer.name)
            .field("credential", &self.credential)
            .finish_non_exhaustive()
    }
}

/// Names of the fields that carry the consumer to a node.
pub(crate) const CONSUMER_FIELDS: [&str; 3] =
    ["X-Consumer-Username", "X-Credential-Identifier", "X-Consumer-Custom-ID"];

impl Context {
    /// Binds the request to a consumer and sets the fields for the node. Fields with these names from the client are
    /// removed.
    pub fn attach(&mut self, identity: &Arc<Identity>) {
        let consumer = Arc::clone(&identity.consumer);
        let values = [Some(&*consumer.name), identity.credential.as_deref(), consumer.custom_id.as_deref()];
        self.tell_consumer(values);
        self.identity = Some(Arc::clone(identity));
    }

    /// Binds the request to the consumer for unauthenticated requests.
    pub fn attach_anonymous(&mut self, consumer: &Arc<Consumer>) {
        self.tell_consumer([Some(&*consumer.name), None, None]);
        self.identity = Some(Arc::new(Identity::anonymous(Arc::clone(consumer))));
    }

    fn tell_consumer(&mut self, values: [Option<&str>; 3]) {
        for (name, value) in CONSUMER_FIELDS.into_iter().zip(values) {
            self.request.headers.remove_name(name.as_bytes());
            if let Some(value) = value {
                self.request.headers.append(name, value.as_bytes());
            }
        }
    }
}

/// All consumers of a configuration. A clone is cheap and shares unchanged parts.
#[derive(Debug, Clone, Default)]
pub struct Consumers {
    by_name: Index<Arc<Consumer>>,
    /// By plugin (there are few), then by the identifying attribute.
    identities: Vec<(Box<str>, Index<Arc<Identity>>)>,
}

impl Consumers {
    /// Returns the consumer with this name.
    pub fn get(&self, name: &str) -> Option<&Arc<Consumer>> {
        self.by_name.get(name)
    }

    /// Returns the identity with `key` as the identifying attribute of `plugin`.
    pub fn find(&self, plugin: &str, key: &str) -> Option<&Arc<Identity>> {
        self.of(plugin)?.get(key)
    }

    /// Returns true if `plugin` can authenticate any consumer.
    pub fn has_any(&self, plugin: &str) -> bool {
        self.of(plugin).is_some_and(|index| !index.is_empty())
    }

    /// Returns all identities of `plugin`, in no order.
    pub fn all(&self, plugin: &str) -> impl Iterator<Item = &Arc<Identity>> {
        self.of(plugin).into_iter().flat_map(|index| index.values())
    }

    /// Adds a consumer.
    pub fn put(&mut self, consumer: Arc<Consumer>) {
        let name = consumer.name.clone();
        self.by_name.insert(&name, consumer);
    }

    /// Removes a consumer. Its identities are removed one by one.
    pub fn remove(&mut self, name: &str) {
        self.by_name.remove(name);
    }

    /// Adds an identity. It replaces one with the same key: the last one loaded counts.
    pub fn put_identity(&mut self, plugin: &str, key: &str, identity: Arc<Identity>) {
        let at = self.identities.iter().position(|(known, _)| **known == *plugin).unwrap_or_else(|| {
            self.identities.push((plugin.into(), Index::default()));
            self.identities.len() - 1
        });
        self.identities[at].1.insert(key, identity);
    }

    /// Removes an identity if it still belongs to `consumer`.
    pub fn remove_identity(&mut self, plugin: &str, key: &str, consumer: &str) {
        if let Some((_, index)) = self.identities.iter_mut().find(|(known, _)| **known == *plugin)
            && index.get(key).is_some_and(|identity| *identity.consumer.name == *consumer)
        {
            index.remove(key);
        }
    }

    fn of(&self, plugin: &str) -> Option<&Index<Arc<Identity>>> {
        self.identities.iter().find(|(known, _)| **known == *plugin).map(|(_, index)| index)
    }
}
