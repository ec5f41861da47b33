//! How a connection is made.

use std::collections::HashMap;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::{ClusterClientBuilder, TlsMode};
use redis::cluster_async::ClusterConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisError, RedisResult, Value,
};

use super::target::{Deployment, Encryption, Login, Role, ServerAddress, Target};

/// A connection that any number of commands use at once.
#[derive(Clone)]
pub(super) enum Connection {
    /// To one server.
    Single(MultiplexedConnection),
    /// To all nodes of a cluster; a command goes to the node that has its key.
    Cluster(Box<ClusterConnection>),
}

impl Connection {
    /// Sends a command and waits for its response, within the target's timeout.
    pub(super) async fn ask(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Connection::Single(connection) => connection.req_packed_command(command).await,
            Connection::Cluster(connection) => connection.req_packed_command(command).await,
        }
    }
}

/// Makes an authenticated connection with its database selected.
///
/// # Errors
/// Returns an error without a response, if the credentials are rejected, if the database does not exist, or if the
/// sentinels know no master.
pub(super) async fn connect(target: &Target) -> RedisResult<Connection> {
    match &target.deployment {
        Deployment::Single(place) => single(target, place).await,
        Deployment::Cluster(places) => cluster(target, places).await,
        Deployment::Sentinel { sentinels, master, role, login } => {
            let mut last = RedisError::from((ErrorKind::EmptySentinelList, "no sentinel is configured"));
            for sentinel in sentinels {
                match behind(target, sentinel, login, master, *role).await {
                    Ok(connection) => return Ok(connection),
                    Err(error) => last = error,
                }
            }
            Err(last)
        }
    }
}

async fn single(target: &Target, place: &ServerAddress) -> RedisResult<Connection> {
    let connection = open(target, place, &target.login).await?;
    choose_database(target, connection).await.map(Connection::Single)
}

/// Returns the connection settings for a server with these credentials and the target's encryption.
fn info(target: &Target, place: &ServerAddress, login: &Login) -> RedisResult<ConnectionInfo> {
    let info = (place.host.clone(), place.port).into_connection_info()?;
    let encrypted = |insecure| {
        let (host, port) = (place.host.clone(), place.port);
        ConnectionAddr::TcpTls { host, port, insecure, tls_params: None }
    };
    let info = match target.encryption {
        Encryption::Off => info,
        Encryption::Unverified => info.set_addr(encrypted(true)),
        Encryption::Verified => info.set_addr(encrypted(false)),
    };
    let mut settings = info.redis_settings().clone().set_skip_set_lib_name();
    if !login.password.reveal().is_empty() {
        settings = settings.set_password(login.password.reveal());
        if let Some(username) = &login.username {
            settings = settings.set_username(username);
        }
    }
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp))
}

async fn open(target: &Target, place: &ServerAddress, login: &Login) -> RedisResult<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(target.connect_timeout))
        .set_response_timeout(Some(target.answer_timeout));
    let client = Client::open(info(target, place, login)?)?;
    client.get_multiplexed_async_connection_with_config(&config).await
}

async fn choose_database(
    target: &Target,
    mut connection: MultiplexedConnection,
) -> RedisResult<MultiplexedConnection> {
    if target.database != 0 {
        let chosen = connection.req_packed_command(redis::cmd("SELECT").arg(target.database)).await;
        let chosen = chosen.and_then(Value::extract_error);
        chosen.map_err(|error| {
            RedisError::from((ErrorKind::Client, "failed to change redis db", format!("err: {error}")))
        })?;
    }
    Ok(connection)
}

async fn cluster(target: &Target, places: &[ServerAddress]) -> RedisResult<Connection> {
    let nodes = places.iter().map(|place| (place.host.clone(), place.port).into_connection_info());
    let nodes = nodes.collect::<RedisResult<Vec<ConnectionInfo>>>()?;
    let mut builder = ClusterClientBuilder::new(nodes)
        .connection_timeout(target.connect_timeout)
        .response_timeout(target.answer_timeout)
        // Moved keys are followed; a node that is gone is the shared connection's matter.
        .retries(3);
    let password = target.login.password.reveal();
    if !password.is_empty() {
        builder = builder.password(password);
    }
    builder = match target.encryption {
        Encryption::Off => builder,
        Encryption::Unverified => builder.tls(TlsMode::Insecure),
        Encryption::Verified => builder.tls(TlsMode::Secure),
    };
    let connection = builder.build()?.get_async_connection().await?;
    Ok(Connection::Cluster(Box::new(connection)))
}

/// Returns a connection to the server that a sentinel names, if the server confirms its role.
async fn behind(
    target: &Target,
    sentinel: &ServerAddress,
    login: &Login,
    master: &str,
    role: Role,
) -> RedisResult<Connection> {
    let mut sentinel = open(target, sentinel, login).await?;
    let places = match role {
        Role::Master => vec![master_place(&mut sentinel, master).await?],
        Role::Replica => replica_places(&mut sentinel, master).await?,
    };
    let mut last =
        RedisError::from((ErrorKind::NoValidReplicasFoundBySentinel, "the sentinel has no replica"));
    for place in places {
        match in_role(target, &place, role).await {
            Ok(connection) => return Ok(connection),
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn master_place(sentinel: &mut MultiplexedConnection, master: &str) -> RedisResult<ServerAddress> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(master);
    let found: Option<(String, u16)> = command.query_async(sentinel).await?;
    let unknown = || {
        RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, "the sentinel has no master of this name"))
    };
    found.map(|(host, port)| ServerAddress { host, port }).ok_or_else(unknown)
}

async fn replica_places(
    sentinel: &mut MultiplexedConnection,
    master: &str,
) -> RedisResult<Vec<ServerAddress>> {
    let mut command = redis::cmd("SENTINEL");
    command.arg("slaves").arg(master);
    let replicas: Vec<HashMap<String, String>> = command.query_async(sentinel).await?;
    let mut places: Vec<ServerAddress> = replicas
        .iter()
        .filter(|replica| {
            let flags = replica.get("flags").map_or("", String::as_str);
            !["s_down", "o_down", "disconnected"].iter().any(|down| flags.contains(down))
        })
        .filter_map(|replica| {
            Some(ServerAddress { host: replica.get("ip")?.clone(), port: replica.get("port")?.parse().ok()? })
        })
        .collect();
    // Workers and gateways do not all ask the same one.
    if !places.is_empty() {
        let turn = std::process::id() as usize % places.len();
        places.rotate_left(turn);
    }
    Ok(places)
}

/// Connects to a server in a role: right after a failover a sentinel may still name the old master, which then
/// reports its real role.
async fn in_role(target: &Target, place: &ServerAddress, role: Role) -> RedisResult<Connection> {
    let mut connection = open(target, place, &target.login).await?;
    let answer = connection.req_packed_command(&redis::cmd("ROLE")).await?.extract_error()?;
    let wanted = if role == Role::Master { "master" } else { "slave" };
    let is = match &answer {
        Value::Array(parts) => parts.first().map(redis::from_redis_value_ref::<String>),
        _ => None,
    };
    if is.and_then(Result::ok).as_deref() != Some(wanted) {
        return Err(RedisError::from((
            ErrorKind::Client,
            "the server does not have the role that the sentinel reports",
        )));
    }
    choose_database(target, connection).await.map(Connection::Single)
}
