//! Look-ups with the system's configuration: `/etc/hosts` first, then the name servers and search domains of
//! `/etc/resolv.conf`.

use std::{
    fs::{self, File},
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use futures_util::{
    FutureExt,
    future::{BoxFuture, Either, select},
};
use hickory_resolver::{
    Hosts, TokioResolver,
    config::{LookupIpStrategy, NameServerConfig, ResolveHosts, ResolverConfig, ResolverOpts},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::{
        op::Query,
        rr::{Name, RecordType},
    },
    system_conf::parse_resolv_conf,
};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::{Lookup, MAX_LOOKUPS, MAX_TTL, NoAddress, Resolution};
use crate::outbound::fault::NoConnection;

/// How often the files are checked for changes, because a process may start before its network has name servers. A
/// failed look-up is cached for the same time, so the files are checked before the name is looked up again.
const CHECK_FILES_EVERY: Duration = Duration::from_secs(5);
/// The maximum time to wait for a name server before it is asked again: after a lost datagram, time must remain for
/// another one.
const MAX_TRY: Duration = Duration::from_secs(2);

/// How long a look-up waits for the answers of both address families before it asks for IPv4 addresses alone: the delay
/// after which a dial tries its second address too (RFC 8305). Most servers answer within this time, and cause no
/// further question.
const BOTH_FAMILIES_WITHIN: Duration = Duration::from_millis(250);

/// Looks up names in a hosts file and at configured name servers.
#[derive(Clone)]
pub(in crate::outbound) struct NameServers {
    hosts: Arc<Hosts>,
    /// Asks for both address families. `None` when it could not be built.
    resolver: Option<TokioResolver>,
    /// Asks for IPv4 addresses only.
    ipv4_resolver: Option<TokioResolver>,
}

impl NameServers {
    pub(in crate::outbound) fn new(servers: &[SocketAddr]) -> Self {
        let servers = servers.iter().map(|server| {
            let mut config = NameServerConfig::udp_and_tcp(server.ip());
            config.connections.iter_mut().for_each(|connection| connection.port = server.port());
            config
        });
        let config = ResolverConfig::from_parts(None, Vec::new(), servers.collect());
        Self::configured(Hosts::default(), config, ResolverOpts::default())
    }

    fn configured(hosts: Hosts, config: ResolverConfig, mut options: ResolverOpts) -> Self {
        options.timeout = options.timeout.min(MAX_TRY);
        options.ip_strategy = LookupIpStrategy::Ipv4AndIpv6;
        // This type reads the hosts file itself, and `Names` caches.
        options.use_hosts_file = ResolveHosts::Never;
        options.cache_size = 0;
        // Each look-up sends an A and an AAAA query, over one connection when TCP is used.
        options.max_active_requests = 2 * MAX_LOOKUPS;
        let mut ipv4 = options.clone();
        ipv4.ip_strategy = LookupIpStrategy::Ipv4Only;
        Self {
            hosts: Arc::new(hosts),
            resolver: resolver(config.clone(), options),
            ipv4_resolver: resolver(config, ipv4),
        }
    }

    /// Reads the two files. Without a name server, this machine is asked, as in libc.
    fn of_files([hosts_file, resolv_conf]: &[PathBuf; 2]) -> Self {
        let mut hosts = Hosts::default();
        if let Err(error) = File::open(hosts_file).and_then(|file| hosts.read_hosts_conf(file)) {
            tracing::warn!(%error, file = %hosts_file.display(), "could not read the hosts file");
        }
        let read = fs::read(resolv_conf).map_err(NetError::from).and_then(parse_resolv_conf);
        let (config, options) = read.unwrap_or_else(|error| {
            tracing::warn!(%error, file = %resolv_conf.display(), "no name server is configured; asking this machine");
            let this_machine = NameServerConfig::udp_and_tcp(Ipv4Addr::LOCALHOST.into());
            (ResolverConfig::from_parts(None, Vec::new(), vec![this_machine]), ResolverOpts::default())
        });
        Self::configured(hosts, config, options)
    }

    /// The addresses in the hosts file, of both families. They take precedence over the name servers.
    fn in_hosts(&self, name: &str) -> Vec<IpAddr> {
        let Ok(name) = Name::from_str_relaxed(name) else { return Vec::new() };
        let of_type = |record_type| self.hosts.lookup_static_host(&Query::query(name.clone(), record_type));
        let found = [RecordType::A, RecordType::AAAA].into_iter().filter_map(of_type);
        let addresses = |lookup: hickory_resolver::lookup::Lookup| {
            lookup.answers().iter().filter_map(|record| record.data.ip_addr()).collect::<Vec<_>>()
        };
        found.flat_map(addresses).collect()
    }

    async fn find(self, name: Arc<str>) -> Result<Resolution, NoAddress> {
        // The hosts file takes precedence. Its entries have no TTL, so they get the longest.
        let addresses = self.in_hosts(&name);
        if !addresses.is_empty() {
            return Ok(Resolution { addresses, ttl: MAX_TTL });
        }
        let (resolver, ipv4_resolver) = self.resolver.zip(self.ipv4_resolver).ok_or(NoAddress::Failed)?;
        let both = pin!(resolver.lookup_ip(&*name));
        let ipv4 = pin!(async {
            sleep(BOTH_FAMILIES_WITHIN).await;
            ipv4_resolver.lookup_ip(&*name).await
        });
        // The servers of some names answer no question for IPv6 addresses, and the look-up of both families waits for
        // that answer. The other one answers first only in that case. If it fails, the first one decides.
        let lookup = match select(both, ipv4).await {
            Either::Left((lookup, _)) | Either::Right((lookup @ Ok(_), _)) => lookup,
            Either::Right((Err(_), both)) => both.await,
        };
        let lookup = lookup.map_err(|error| no_address(&error))?;
        // The record with the shortest TTL decides. Each address counts once, in the order of the answer.
        let seconds = lookup.as_lookup().answers().iter().map(|record| record.ttl).min().unwrap_or(0);
        let mut addresses: Vec<IpAddr> = Vec::new();
        for address in lookup.iter() {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        Ok(Resolution { addresses, ttl: Duration::from_secs(seconds.into()) })
    }
}

fn resolver(config: ResolverConfig, options: ResolverOpts) -> Option<TokioResolver> {
    let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
    *builder.options_mut() = options;
    let resolver = builder.build();
    if let Err(error) = &resolver {
        tracing::warn!(%error, "could not build the resolver; names cannot be looked up");
    }
    resolver.ok()
}

fn no_address(error: &NetError) -> NoAddress {
    match error {
        NetError::Timeout => NoAddress::Timeout,
        NetError::Io(error) => NoConnection::exhausted(error).map_or(NoAddress::Failed, NoAddress::Exhausted),
        error if error.is_no_records_found() => NoAddress::None,
        _ => NoAddress::Failed,
    }
}

impl Lookup for NameServers {
    fn lookup(&self, name: Arc<str>) -> BoxFuture<'static, Result<Resolution, NoAddress>> {
        self.clone().find(name).boxed()
    }
}

/// Looks up names with the current contents of the system's files.
pub(in crate::outbound) struct SystemNames {
    /// The hosts file and `resolv.conf`.
    files: [PathBuf; 2],
    read: Mutex<Option<LoadedFiles>>,
}

struct LoadedFiles {
    checked_at: Instant,
    /// The modification times of the files.
    written: [Option<SystemTime>; 2],
    servers: NameServers,
}

impl Default for SystemNames {
    fn default() -> Self {
        Self::of_files(["/etc/hosts".into(), "/etc/resolv.conf".into()])
    }
}

impl SystemNames {
    fn of_files(files: [PathBuf; 2]) -> Self {
        Self { files, read: Mutex::default() }
    }

    fn servers(&self) -> NameServers {
        let now = Instant::now();
        // A panic while the lock is held leaves the previous value.
        let mut read = self.read.lock();
        if let Some(read) = read.as_ref().filter(|read| now.duration_since(read.checked_at) < CHECK_FILES_EVERY) {
            return read.servers.clone();
        }
        // Read the files again only if their modification times have changed.
        let written = self.files.each_ref().map(|file| fs::metadata(file).and_then(|file| file.modified()).ok());
        let servers = match &*read {
            Some(read) if read.written == written => read.servers.clone(),
            _ => NameServers::of_files(&self.files),
        };
        read.insert(LoadedFiles { checked_at: now, written, servers }).servers.clone()
    }
}

impl Lookup for SystemNames {
    fn lookup(&self, name: Arc<str>) -> BoxFuture<'static, Result<Resolution, NoAddress>> {
        self.servers().lookup(name)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    async fn addresses(names: &SystemNames, name: &str) -> Vec<String> {
        let found = names.lookup(name.into()).await.unwrap();
        found.addresses.iter().map(ToString::to_string).collect()
    }

    /// The test asks no name server, because it would wait for the answer.
    #[tokio::test(start_paused = true)]
    async fn the_hosts_file_takes_precedence_and_is_read_again_after_a_change() {
        let folder = tempfile::tempdir().unwrap();
        let [hosts, resolv_conf] = ["hosts", "resolv.conf"].map(|file| folder.path().join(file));
        fs::write(&hosts, "192.0.2.1 a.example b.example # c.example\n2001:db8::1 b.example\n").unwrap();
        fs::write(&resolv_conf, "search inside.example\nnameserver 192.0.2.53\n").unwrap();
        let names = SystemNames::of_files([hosts.clone(), resolv_conf]);
        assert_eq!(addresses(&names, "a.example").await, ["192.0.2.1"]);
        assert_eq!(addresses(&names, "B.example.").await, ["192.0.2.1", "2001:db8::1"]);

        fs::write(&hosts, "192.0.2.2 a.example\n").unwrap();
        let written = File::options().append(true).open(&hosts).unwrap();
        written.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(addresses(&names, "a.example").await, ["192.0.2.1"]);
        advance(CHECK_FILES_EVERY).await;
        assert_eq!(addresses(&names, "a.example").await, ["192.0.2.2"]);
    }
}
