use std::{
    io,
    net::{Ipv4Addr, SocketAddr},
};

use socket2::{Domain, Socket, Type};

/// A loopback port that the kernel gives to no other process while this value lives. A server can still listen on this
/// port: Linux lets several sockets with `SO_REUSEADDR` use one port until one of these sockets listens, and every
/// server sets `SO_REUSEADDR`. Other systems do not allow this. There the port is released at once, so another process
/// may take the port before the server does.
#[derive(Debug)]
pub struct HeldPort {
    number: u16,
    /// `None` where a port cannot be held.
    _socket: Option<Socket>,
}

impl HeldPort {
    /// Holds a free port.
    ///
    /// # Errors
    ///
    /// The system has no free port or no free file.
    pub fn hold() -> io::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into())?;
        let number = socket.local_addr()?.as_socket().map_or(0, |address| address.port());
        Ok(Self { number, _socket: cfg!(target_os = "linux").then_some(socket) })
    }

    pub const fn number(&self) -> u16 {
        self.number
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn held_ports_differ() {
        let held: Vec<_> = (0..8).map(|_| HeldPort::hold().unwrap()).collect();
        for (n, port) in held.iter().enumerate() {
            assert!(port.number() > 0 && held[..n].iter().all(|other| other.number() != port.number()), "{held:?}");
        }
    }

    #[test]
    fn a_server_can_listen_on_a_held_port() {
        let held = HeldPort::hold().unwrap();
        TcpListener::bind((Ipv4Addr::LOCALHOST, held.number())).unwrap();
    }
}
