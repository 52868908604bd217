//! The table of the settings. Its rows make the flags with their help, the reading of the environment and the file, the
//! fields of [`Settings`], and the table of docs/reference/configuration.md.

use std::{net::SocketAddr, ops::RangeInclusive, path::PathBuf};

use ipnet::IpNet;
use url::Host;
use weir_api::PublicUrl;
use weir_core::{
    egress::{HostPattern, HttpProxy},
    event_types,
    shed::Mode,
};
use weir_sealing::Keyring;

#[cfg(test)]
use super::ProcessRole;
use super::{
    ApiKey, DatabaseUrl, LogFormat, Password, ServerUrl,
    error::ConfigError,
    parse::{self, number},
    values::SourceValues,
};

/// The form of a setting whose flag may stand alone, which means true.
pub(super) const BOOLEAN: &str = "true|false";

/// A row of the table. The name gives all names: `listen` in `weir.toml`, `WEIR_LISTEN`, `--listen`.
#[derive(Debug)]
pub(super) struct Setting {
    pub(super) name: &'static str,
    /// What kind of value it is, for the help.
    pub(super) form: &'static str,
    pub(super) default: &'static str,
    /// The default for people; empty: none that is worth a word.
    pub(super) shown_default: &'static str,
    pub(super) help: &'static str,
    /// It may hold a password or a key: it is not shown, and may come from a file that `NAME_file` names.
    pub(super) is_secret: bool,
    /// What the page of the reference says in addition, and which processes use the setting; empty: all of them.
    #[cfg(test)]
    pub(super) more: &'static str,
    #[cfg(test)]
    pub(super) used_by: &'static [ProcessRole],
}

macro_rules! settings {
    ($(
        $(#[$comment:meta])*
        $name:ident: $type:ty = $parse:expr, $form:literal {
            $(secret $secret:literal;)?
            $(default $default:literal;)?
            $(shown $shown:literal;)?
            $(used_by $($role:ident),+;)?
            help $help:literal;
            $(more $more:literal;)?
        }
    )+) => {
        pub(super) static SETTINGS: &[Setting] = &[$(Setting {
            name: stringify!($name),
            form: $form,
            default: concat!($($default)?),
            shown_default: settings!(@first $($shown)? $($default)? ""),
            help: $help,
            is_secret: settings!(@first $($secret)? false),
            #[cfg(test)]
            more: concat!($($more)?),
            #[cfg(test)]
            used_by: &[$($(ProcessRole::$role),+)?],
        }),+];

        /// The settings of a process. A field has the name of its setting, also where that ends in a unit.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub(crate) struct Settings {$(
            #[doc = $help]
            $(#[$comment])*
            pub(crate) $name: $type,
        )+}

        impl Settings {
            /// Each value comes from its strongest source. The first invalid value ends the reading.
            pub(super) fn parse(values: &SourceValues) -> Result<Self, ConfigError> {
                Ok(Self { $($name: values.parse(stringify!($name), $parse)?),+ })
            }

            /// The names of the settings with other values.
            pub(crate) fn differing(&self, other: &Self) -> Vec<&'static str> {
                let differ = [$((stringify!($name), self.$name != other.$name)),+];
                differ.into_iter().filter_map(|(name, differs)| differs.then_some(name)).collect()
            }

            /// Every invalid value.
            pub(super) fn faults(values: &SourceValues) -> Vec<ConfigError> {
                [$(values.parse::<$type>(stringify!($name), $parse).err()),+].into_iter().flatten().collect()
            }
        }
    };
    (@first $first:literal $($rest:literal)*) => { $first };
}

settings! {
    listen: SocketAddr = parse::listen, "ADDRESS:PORT" {
        default "127.0.0.1:8080";
        shown "127.0.0.1:8080; for a scheduler or worker, which serve health and metrics, any free port";
        help "Address to listen on; without API keys the API must listen on a loopback address";
    }
    /// `None`: metrics are served on `listen`.
    metrics_listen: Option<SocketAddr> = parse::optional_listen, "ADDRESS:PORT" {
        shown "none";
        help "Separate address for metrics, which are then not served on the listen address; serves health too";
    }
    database_url: DatabaseUrl = parse::database_url, "URL" {
        secret true;
        default "sqlite://weir.db";
        help "Database: sqlite://FILE or postgres://…";
        more "A file can be open in one process only.";
    }
    /// `None`: the password of the URL, or none.
    database_password: Option<Password> = parse::password, "PASSWORD" {
        secret true;
        help "Password for PostgreSQL, as it is: no character needs an escape, which it needs in the URL";
    }
    database_pool: u32 = |text| number(text, 2, 1_000), "N" {
        default "6";
        help "Connections to PostgreSQL for edits and for reads of the API";
        more "A process has ten more, for writes in batches: see [PostgreSQL](../operations/postgres.md).";
    }
    /// `None`: everything is read where it is written.
    database_read_url: Option<ServerUrl> = parse::database_read_url, "URL" {
        secret true;
        shown "none";
        used_by Api;
        help "A streaming replica of the database, for lists, history and audits";
        more "It is passed over while it is behind or away: see [PostgreSQL](../operations/postgres.md#read-replica). \
              Password and TLS are those of WEIR_DATABASE_URL.";
    }
    database_tls_ca: Option<PathBuf> = parse::readable_file, "FILE" {
        help "Trust only these certificate authorities (PEM) for PostgreSQL, and require TLS with a checked host name";
        more "`sslmode` in the URL overrides the second part. Receivers are checked against the authorities of the system.";
    }
    database_tls_cert: Option<PathBuf> = parse::readable_file, "FILE" {
        help "Certificate (PEM) that this process shows to PostgreSQL; needs WEIR_DATABASE_TLS_KEY";
    }
    database_tls_key: Option<PathBuf> = parse::readable_file, "FILE" {
        help "Private key (PEM) of that certificate";
    }
    encryption_keys: Keyring = parse::encryption_keys, "KEY,…" {
        secret true;
        help "Keys that encrypt the secrets in the database: each the base64 of 32 bytes; the first one encrypts, all of them decrypt";
        more "`none` in front of the keys: new values are not encrypted. See [encryption](../operations/encryption.md).";
    }
    encrypt_bodies: bool = parse::boolean, "true|false" {
        default "false";
        help "Encrypt also the bodies of events and of answers; needs WEIR_ENCRYPTION_KEYS";
    }
    /// `None`: the queue is in the process.
    redis_url: Option<ServerUrl> = parse::redis_url, "URL" {
        secret true;
        shown "none, the queue is in the process";
        help "Redis for the queue, or several nodes of a Redis Cluster";
        more "`redis://`, `rediss://` for TLS, `unix:///run/redis.sock` for a socket; commas separate the nodes of a \
              Cluster. An IPv6 address stands in brackets: `redis://[::1]:6379`.";
    }
    /// `None`: the password of the URL, or none.
    redis_password: Option<Password> = parse::password, "PASSWORD" {
        secret true;
        help "Password for Redis, as it is: no character needs an escape, which it needs in the URL";
    }
    redis_tls_ca: Option<PathBuf> = parse::readable_file, "FILE" {
        help "Trust only these certificate authorities (PEM) for Redis; needs rediss://";
    }
    redis_tls_cert: Option<PathBuf> = parse::readable_file, "FILE" {
        help "Certificate (PEM) that this process shows to Redis; needs WEIR_REDIS_TLS_KEY";
    }
    redis_tls_key: Option<PathBuf> = parse::readable_file, "FILE" {
        help "Private key (PEM) of that certificate";
    }
    // The prefix of every earlier version.
    redis_prefix: String = parse::redis_prefix, "PREFIX" {
        default "weir";
        help "Prefix of all keys in Redis; several installations may share a Redis if each has its own";
        more "See [Redis](../operations/redis.md).";
    }
    /// Empty: requests need no key, and `listen` is a loopback address.
    api_keys: Vec<ApiKey> = parse::api_keys, "KEY,…" {
        secret true;
        used_by Api;
        help "API keys; a request must send one of them. Beyond loopback they have at least 16 characters. The \
              environment variable hides them better";
        more "A request sends its key as `Authorization: Bearer <key>`. These keys are admins of all tenants, see \
              [keys](../guides/keys-and-tenants.md).";
    }
    hosts: Vec<Host<String>> = parse::hosts, "HOST,…" {
        help "Host names that requests may address, besides loopback hosts";
        more "They are written without ports. Other hosts get 421, against DNS rebinding. A process that listens beyond \
              loopback answers health and metrics for any host.";
    }
    /// `None`: the API is reached at its listener, without a path and over http.
    public_url: Option<PublicUrl> = parse::public_url, "URL" {
        used_by Api;
        help "Where browsers and producers reach the API, for links, the cookie of the dashboard and `WEIR_HOSTS`";
        more "Example: `https://ops.example.com/weir`. Its host counts as one of `WEIR_HOSTS`; a reverse proxy removes \
              its path.";
    }
    trusted_proxies: Vec<IpNet> = parse::networks, "CIDR,…" {
        used_by Api;
        help "Believe `X-Forwarded-For` of reverse proxies in these networks";
        more "Clients with wrong keys are then throttled apart.";
    }
    dashboard: bool = parse::on_or_off, "on|off" {
        default "on"; used_by Api;
        help "Serve the dashboard at `/`";
    }
    allow_http: bool = parse::boolean, "true|false" {
        default "false"; used_by Api, Worker;
        help "Accept destinations with plain http URLs";
    }
    allow_networks: Vec<IpNet> = parse::networks, "CIDR,…" {
        used_by Api, Worker;
        help "Accept destinations in these private networks";
    }
    deny_networks: Vec<IpNet> = parse::networks, "CIDR,…" {
        used_by Api, Worker;
        help "Refuse destinations in these networks, even if they are public or allowed";
    }
    /// Empty: any port.
    allow_ports: Vec<RangeInclusive<u16>> = parse::ports, "PORT|FROM-TO,…" {
        shown "any";
        used_by Api, Worker;
        help "Accept only destinations on these ports";
        more "Example: `443,8000-8999`.";
    }
    /// `None`: destinations are connected to directly.
    egress_proxy: Option<HttpProxy> = parse::egress_proxy, "URL" {
        secret true;
        shown "none";
        used_by Worker;
        help "Connect to destinations through this HTTP proxy (CONNECT)";
        more "`http://host:port` or `http://user:password@host:port`. See [egress proxy](../operations/egress-proxy.md).";
    }
    egress_direct: Vec<HostPattern> = parse::host_patterns, "HOST|CIDR,…" {
        used_by Worker;
        help "Connect to these destinations without the egress proxy: names with all names below them, and networks";
        more "A network contains only destinations whose URL has a literal address.";
    }
    egress_allow: Vec<HostPattern> = parse::host_patterns, "HOST|CIDR,…" {
        used_by Api, Worker;
        help "Let destinations name these proxies as their own although their addresses are private";
    }
    /// `None`: that of the program.
    user_agent: Option<String> = parse::user_agent, "TEXT" {
        shown "Weir/ and the version";
        used_by Worker;
        help "The user-agent of requests to destinations that name none in their headers";
    }
    log: String = parse::log, "FILTER" {
        default "info";
        help "Log filter, such as info,weir_worker=debug";
    }
    log_format: LogFormat = parse::log_format, "FORMAT" {
        default "text";
        help "Format of log lines: text or json";
    }
    max_event_bytes: usize = |text| number(text, 1_024, 64 << 20), "BYTES" {
        default "1048576"; used_by Api;
        help "Refuse events larger than this size";
    }
    body_budget_bytes: usize = |text| number(text, 1 << 20, 64 << 40), "BYTES" {
        default "268435456"; used_by Api;
        help "Memory for the bodies of all open requests; further requests get 503";
        more "One API key may hold half of it. The 503 has `Retry-After`.";
    }
    shed: Mode = parse::shed, "MODE" {
        default "on"; used_by Api;
        help "Refuse requests under overload: on, dry-run (count what would be refused) or off";
        more "What is set with `PUT /v1/shedding` replaces it. See [overload](../operations/overload.md).";
    }
    event_types: event_types::Mode = parse::event_types, "MODE" {
        default "open"; used_by Api;
        help "Which events are accepted: open (every type) or strict (types of the catalogue, with data that fits)";
        more "See [event types](../guides/event-types.md).";
    }
    // Far more connections than a few dozen producers open; with a buffer of 8 KiB each they need at most 32 MiB.
    max_connections: usize = |text| number(text, 1, 1_000_000), "N" {
        default "4096";
        help "Maximum number of client connections at one time; idle ones make room";
        more "If none is idle, new ones wait.";
    }
    /// `None`: a quarter of all connections.
    max_connections_per_address: Option<usize> = parse::connections_per_address, "N" {
        default "auto";
        help "Maximum number of connections of one client address at one time; auto: a quarter of all connections";
        more "An IPv6 client counts by its /64. Further connections get 503. Behind a proxy, all clients have its \
              address.";
    }
    // Of a tenant and of an event: one event is then one commit of a fraction of a second.
    max_destinations: usize = parse::destinations, "N" {
        default "10000"; used_by Api;
        help "Maximum number of destinations of a tenant";
        more "One more gets 409.";
    }
    max_destinations_per_event: usize = parse::destinations, "N" {
        default "10000"; used_by Api, Scheduler;
        help "Refuse events for more destinations than this";
        more "Such an event gets 422.";
    }
    /// `None`: as many as the limit of open files allows.
    worker_capacity: Option<usize> = parse::capacity, "N" {
        default "auto"; used_by Worker;
        help "Maximum number of attempts of a worker at one time; auto: as many as the limit of open files allows, up \
              to 8192";
    }
    shutdown_grace_s: u64 = |text| number(text, 0, 3_600), "SECONDS" {
        default "25"; used_by Worker;
        help "Time for attempts in flight to finish on shutdown";
    }
    retention_delivered_days: Option<u64> = parse::days, "DAYS" {
        default "14"; used_by Scheduler;
        help "Delete delivered deliveries, with their attempts and events, after this time; or: forever";
        more "The time counts from the end of the delivery. On PostgreSQL attempts and events stay until the whole day (UTC) \
            of the event is that old, up to 24 hours longer.";
    }
    retention_cancelled_days: Option<u64> = parse::days, "DAYS" {
        default "14"; used_by Scheduler;
        help "Delete cancelled deliveries after this time; or: forever";
    }
    retention_dead_days: Option<u64> = parse::days, "DAYS" {
        default "forever"; used_by Scheduler;
        help "Delete dead letters (dead and failed deliveries) after this time; or: forever";
    }
}
