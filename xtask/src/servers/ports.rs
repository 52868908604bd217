//! Ports on loopback that no other process gets.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::Context;
use socket2::{Domain, Socket, Type};

/// Different ports that the kernel gives to no other process while this value lives. A server can still listen on them:
/// on Linux, sockets with `SO_REUSEADDR`, which every server sets, share a port until one of them listens. Other systems
/// allow no sharing, so there the ports are only free at first; the caller then tries again with others.
#[derive(Debug)]
pub(crate) struct HeldPorts<const N: usize> {
    pub(crate) numbers: [u16; N],
    _sockets: Vec<Socket>,
}

impl<const N: usize> HeldPorts<N> {
    pub(crate) fn hold() -> anyhow::Result<Self> {
        let (mut numbers, mut sockets) = ([0; N], Vec::new());
        for number in &mut numbers {
            let socket = bind().context("could not find a free port")?;
            *number = socket.local_addr()?.as_socket().map_or(0, |address| address.port());
            sockets.push(socket);
        }
        if cfg!(not(target_os = "linux")) {
            sockets.clear();
        }
        Ok(Self { numbers, _sockets: sockets })
    }
}

fn bind() -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.set_reuse_address(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn held_ports_differ() {
        let held = HeldPorts::<8>::hold().unwrap();
        for (n, port) in held.numbers.iter().enumerate() {
            assert!(*port > 0 && !held.numbers[..n].contains(port), "{held:?}");
        }
    }

    #[test]
    fn a_server_can_listen_on_a_held_port() {
        let held = HeldPorts::<1>::hold().unwrap();
        TcpListener::bind((Ipv4Addr::LOCALHOST, held.numbers[0])).unwrap();
    }
}
