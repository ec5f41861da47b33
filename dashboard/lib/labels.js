// The names of fields as people read them, and help in plain English where the schema says little.

/** Names that the rule of `titleOf` does not make. */
const TITLES = {
  _meta: "Settings of every plugin",
  alpn: "ALPN protocols",
  cert: "Certificate",
  cert_file: "Certificate file",
  certs: "Further certificates",
  checks: "Health checks",
  client_cert_id: "Client certificate",
  desc: "Description",
  group_id: "Consumer group",
  hash_on: "Hash source",
  keepalive_pool: "Connection pool",
  key_file: "Private key file",
  members: "Member upstreams",
  on_unhealthy: "Open requests of an unhealthy node",
  pass_host: "Host header",
  plugin_config_id: "Plugin config",
  proto_id: "Proto",
  proxy_protocol: "PROXY protocol",
  remote_addr: "Client address",
  remote_addrs: "Client addresses",
  server_addr: "Server address",
  service_id: "Service",
  sni: "Server name (SNI)",
  snis: "Server names (SNI)",
  ssl_ciphers: "TLS ciphers",
  ssl_curves: "TLS key exchange groups",
  ssl_protocols: "TLS versions",
  superior_id: "Parent stream route",
  upstream_id: "Upstream",
  upstream: "Inline upstream",
  uri: "Path",
  uris: "Paths",
  vars: "Conditions",
};

const ACRONYMS = /\b(acl|acme|ai|api|cidr|cors|cpu|crl|dns|grpc|html|https|http|id|ip|json|jwt|ldap|oauth|ocsp|pem|rsa|sni|sql|ssl|tcp|tls|ttl|udp|uri|url|utc|uuid|xml|yaml)(s?)\b/g;

/** The title of a field: `time_window` is `Time window`, `client_ids` is `Client IDs`. */
export function titleOf(name) {
  if (Object.hasOwn(TITLES, name)) return TITLES[name];
  const words = String(name).replace(/[_-]+/g, " ").trim();
  const title = words.replace(ACRONYMS, (_, acronym, plural) => acronym.toUpperCase() + plural);
  return title.charAt(0).toUpperCase() + title.slice(1);
}

/** Help for fields of resources, by the collection or for all of them. */
const HELP = {
  all: {
    name: "A name for lists and logs. It does not have to be unique.",
    desc: "A note for operators.",
    labels: "Free names and values, for filters and searches.",
    plugins: "The plugins of this resource, each with its settings.",
    status: "1 is enabled, 0 is disabled.",
    upstream_id: "The upstream that receives the requests.",
    service_id: "The service whose settings apply.",
  },
  routes: {
    uri: "One path, such as /hello, or a prefix, such as /api/*. Use either this field or Paths.",
    uris: "Several paths. Use either this field or Path.",
    methods: "The HTTP methods that match. Leave it empty to match all methods.",
    host: "One host, such as example.com or *.example.com. Leave it empty to match all hosts.",
    hosts: "Several hosts. Use either this field or Host.",
    priority: "If several routes have the same path, the highest number wins.",
    remote_addr: "One address or network of clients, such as 10.0.0.0/8.",
    remote_addrs: "Several addresses or networks of clients.",
    plugin_config_id: "A plugin config whose plugins are added to those of the route. The route's own plugins win.",
    upstream_id: "The upstream that receives the requests. It wins over an inline upstream.",
    upstream: "An upstream for this route only.",
    enable_websocket: "Whether clients may open WebSockets. If not set, the service decides.",
    timeout: "Timeouts towards the nodes. They replace those of the upstream.",
    vars: "Further conditions, as a JSON list, such as [[\"arg_version\", \"==\", \"2\"]].",
  },
  services: {
    hosts: "The hosts of routes that name no hosts.",
    upstream: "An upstream for the routes of this service.",
  },
  upstreams: {
    nodes: "The addresses of the nodes, each with its weight. A node with weight 2 gets twice the requests of one with weight 1.",
    type: "How a node is chosen for a request.",
    scheme: "The protocol towards the nodes.",
    retries: "How many other nodes are tried after a failure. If not set, every node is tried once.",
    retry_timeout: "Seconds after which no retry starts. 0 means no limit.",
    checks: "Requests and connections that find out whether a node works.",
    pass_host: "The Host header that a node gets: that of the client (pass), that of the node (node), or another one (rewrite).",
    upstream_host: "The Host header, if the field above is set to rewrite.",
    tls: "TLS towards the nodes: verification and client certificates.",
    timeout: "Seconds to connect, to send and to wait for the response.",
    service_name: "The service in a registry that has the nodes. It replaces the field Nodes.",
    discovery_type: "The registry of the service.",
  },
  consumers: {
    username: "The name of the consumer: letters, digits, - and _.",
    plugins: "Plugins for this consumer, such as key-auth with its key, or limit-count with its own limit.",
    group_id: "The consumer group whose plugins apply to this consumer.",
  },
  credentials: { plugins: "One authentication plugin with the credential, such as key-auth with its key." },
  ssls: {
    cert: "The certificate and its chain, as PEM text.",
    key: "The private key of the certificate, as PEM text. It is not shown again.",
    sni: "One server name, such as example.com or *.example.com.",
    snis: "The server names of this certificate, such as example.com or *.example.com.",
    type: "Whether it is shown to clients (server) or to nodes (client).",
  },
  stream_routes: {
    server_port: "The port that the client connects to. Leave it empty to match all ports.",
    server_addr: "The address or network that the client connects to.",
    remote_addr: "The address or network of the client.",
    sni: "The TLS server name that the client asks for, on listeners with stream: tls.",
    upstream: "An upstream for this stream route only.",
    upstream_id: "The upstream that receives the sessions.",
  },
  protos: { content: "The text of a .proto file, or a FileDescriptorSet in base64." },
};

/** Help for a field of a resource; undefined for the description of its schema. */
export function helpOf(collection, path) {
  if (path.length !== 1) return undefined;
  return HELP[collection]?.[path[0]] ?? HELP.all[path[0]];
}
