//! Free ports on loopback.

use std::{
    array, io,
    net::{Ipv4Addr, TcpListener},
};

use anyhow::Context;

/// Different ports that are free now. Another process may take one a moment later; the caller then tries again.
pub(crate) fn free<const N: usize>() -> anyhow::Result<[u16; N]> {
    // All ports are bound before any is released, so that they differ.
    let held: [io::Result<TcpListener>; N] = array::from_fn(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let mut ports = [0; N];
    for (port, listener) in ports.iter_mut().zip(held) {
        *port = listener.and_then(|listener| listener.local_addr()).context("could not find a free port")?.port();
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ() {
        let ports: [u16; 8] = free().unwrap();
        for (n, port) in ports.iter().enumerate() {
            assert!(*port > 0 && !ports[..n].contains(port), "{ports:?}");
        }
    }
}
