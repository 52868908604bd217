//! The router before several installations, with a real HAProxy: it finds the cell of a key and of a host.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::{TcpListener, TcpStream},
    process::{Child, Command},
    thread,
    time::Duration,
};

use tempfile::TempDir;
use weir_deploy_checks::{read, tool};

/// The SHA-256 of `Bearer old-key` and of `Bearer key-of-b`.
const DIGESTS: [&str; 2] = [
    "f00986a76b1c7ffd40dbfd131f50c2ca1ced8e2fa1ab2e2db803c428b1bdb182",
    "60484f665453973b764001a6fc901c4ed3162bff5ae2bfea18749124d740aadb",
];

struct Router {
    haproxy: Child,
    port: u16,
    _folder: TempDir,
}

impl Drop for Router {
    fn drop(&mut self) {
        let _ = self.haproxy.kill();
        let _ = self.haproxy.wait();
    }
}

/// A cell that answers with its name and the key that it was asked with. It serves one host, as Weir does.
fn cell(name: &'static str, host: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for connection in listener.incoming() {
            let mut connection = connection.unwrap();
            let head: Vec<String> =
                BufReader::new(&connection).lines().map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
            let header = |wanted: &str| {
                head.iter().find_map(|line| {
                    Some(line.split_once(": ").filter(|(name, _)| name.eq_ignore_ascii_case(wanted))?.1)
                })
            };
            let is_probe = head.first().is_some_and(|line| line.contains("/readyz"));
            let status = if is_probe && header("host") != Some(host) { "421 Misdirected Request" } else { "200 OK" };
            let body = format!("{name} {}", header("authorization").unwrap_or("-"));
            let length = body.len();
            let _ =
                write!(connection, "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}");
        }
    });
    port
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Router {
    /// Starts the router with its files in a folder of the test, and waits until both cells are known to be up.
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().to_str().unwrap();
        let [old, of_b] = DIGESTS;
        fs::write(folder.path().join("cells.map"), format!("{old} cell-b\n{of_b} cell-b\n")).unwrap();
        fs::write(folder.path().join("hosts.map"), "a.weir.example.com cell-a\n").unwrap();
        fs::write(folder.path().join("moved.map"), format!("{old} key-of-b\n")).unwrap();
        let port = free_port();
        let configuration = read("deploy/haproxy/cells.cfg")
            .unwrap()
            .replace("/etc/haproxy/", &format!("{at}/"))
            .replace("/run/haproxy/", &format!("{at}/"))
            .replace("bind :8080", &format!("bind 127.0.0.1:{port}"))
            .replace("a.internal:8080", &format!("127.0.0.1:{}", cell("a", "a.weir.example.com")))
            .replace("b.internal:8080", &format!("127.0.0.1:{}", cell("b", "b.weir.example.com")));
        let file = folder.path().join("cells.cfg");
        fs::write(&file, configuration).unwrap();
        let haproxy = Command::new(tool("WEIR_TEST_HAPROXY").unwrap()).arg("-f").arg(&file).spawn().unwrap();
        let router = Self { haproxy, port, _folder: folder };
        for _ in 0..600 {
            if router.ask("a.weir.example.com", "").0 == 200 && router.ask("any", "Bearer key-of-b").0 == 200 {
                return router;
            }
            thread::sleep(Duration::from_millis(50));
        }
        panic!("the router did not find the cells");
    }

    fn ask(&self, host: &str, key: &str) -> (u16, String) {
        let Ok(mut connection) = TcpStream::connect(("127.0.0.1", self.port)) else { return (0, String::new()) };
        let authorization = if key.is_empty() { String::new() } else { format!("authorization: {key}\r\n") };
        write!(connection, "GET /v1/me HTTP/1.1\r\nhost: {host}\r\n{authorization}connection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        let _ = connection.read_to_string(&mut answer);
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
        (status, body.to_owned())
    }
}

#[test]
fn a_request_reaches_the_cell_of_its_key_or_else_of_its_host() {
    let router = Router::start();
    let body = |host, key| router.ask(host, key).1;
    assert_eq!(body("weir.example.com", "Bearer key-of-b"), "b Bearer key-of-b");
    assert_eq!(body("a.weir.example.com:8080", ""), "a -");
    assert_eq!(body("a.weir.example.com", "Bearer key-of-b"), "b Bearer key-of-b", "the key comes first");
    assert_eq!(body("weir.example.com", "Bearer old-key"), "b Bearer key-of-b", "the key of a tenant that has moved");
    assert_eq!(router.ask("weir.example.com", "Bearer unknown").0, 401);
}
