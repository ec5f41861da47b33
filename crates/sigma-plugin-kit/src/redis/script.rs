//! Scripts on the server.

use std::sync::LazyLock;

use redis::{Cmd, ErrorKind, FromRedisValue, RedisResult, ServerErrorKind, ToRedisArgs};
use sha1::{Digest, Sha1};

use super::SharedConnection;

/// A Lua script, called by its digest; a server that does not know it yet gets the text.
pub struct Script {
    text: &'static str,
    digest: LazyLock<String>,
}

impl Script {
    /// Makes a script. `digest` is [`Script::digest_of`] of the same text.
    pub const fn new(text: &'static str, digest: fn() -> String) -> Script {
        Script { text, digest: LazyLock::new(digest) }
    }

    /// Returns the digest that Redis knows a script by.
    pub fn digest_of(text: &str) -> String {
        Sha1::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Runs it on one key: with one, it also runs on a cluster.
    ///
    /// # Errors
    /// Returns an error in the cases in which [`SharedConnection::ask`] does, and if the response has another shape.
    pub async fn run<T: FromRedisValue>(
        &self,
        connection: &SharedConnection,
        key: &[u8],
        args: &[impl ToRedisArgs],
    ) -> RedisResult<T> {
        let unknown = ErrorKind::Server(ServerErrorKind::NoScript);
        let answer = match connection.ask(&call("EVALSHA", &self.digest, key, args)).await {
            Err(error) if error.kind() == unknown => {
                connection.ask(&call("EVAL", self.text, key, args)).await
            }
            answer => answer,
        };
        Ok(redis::from_redis_value(answer?)?)
    }
}

fn call(name: &str, script: &str, key: &[u8], args: &[impl ToRedisArgs]) -> Cmd {
    let mut command = redis::cmd(name);
    command.arg(script).arg(1).arg(key).arg(args);
    command
}
