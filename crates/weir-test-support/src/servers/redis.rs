use std::{io, path::PathBuf};

use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    process::Command,
};

use super::{clock::ServerClock, process::Process};
use crate::HeldPort;

/// A Redis without persistence: it is empty after each start.
pub struct Redis {
    process: Process,
    port: HeldPort,
    arguments: Vec<String>,
    /// The clock that the server reads, if a test sets it.
    pub clock: Option<ServerClock>,
}

impl Redis {
    /// Starts a Redis and waits until it listens.
    ///
    /// # Errors
    ///
    /// Redis is not installed, or ends; the error holds its log.
    pub async fn start() -> io::Result<Self> {
        Self::start_with(&[]).await
    }

    /// Starts a Redis with additional arguments.
    pub async fn start_with(arguments: &[&str]) -> io::Result<Self> {
        Self::start_on(arguments, None).await
    }

    /// Starts a Redis whose clock the test sets.
    ///
    /// # Errors
    ///
    /// Redis is not installed, or it ends; the error holds its log.
    pub async fn start_with_clock() -> io::Result<Self> {
        Self::start_on(&[], Some(ServerClock::new()?)).await
    }

    async fn start_on(arguments: &[&str], clock: Option<ServerClock>) -> io::Result<Self> {
        let port = HeldPort::hold()?;
        let arguments: Vec<_> = arguments.iter().copied().map(str::to_owned).collect();
        let mut redis = Self { process: spawn(&port, &arguments, clock.as_ref())?, port, arguments, clock };
        redis.wait_until_listening().await?;
        Ok(redis)
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port.number())
    }

    /// Sends SIGKILL.
    pub async fn kill(&mut self) -> io::Result<()> {
        self.process.kill().await
    }

    /// Suspends it (STOP) or lets it continue (CONT).
    pub async fn signal(&self, name: &str) -> io::Result<()> {
        self.process.signal(name).await
    }

    /// Starts a new, empty process on the same port.
    pub async fn start_again(&mut self) -> io::Result<()> {
        self.process = spawn(&self.port, &self.arguments, self.clock.as_ref())?;
        self.wait_until_listening().await
    }

    /// Sends a command in the inline form and returns the text of the answer.
    pub async fn ask(&self, command: &str) -> io::Result<String> {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", self.port.number())).await?);
        stream.write_all(format!("{command}\r\n").as_bytes()).await?;
        let mut head = String::new();
        stream.read_line(&mut head).await?;
        match head.trim_end().split_at_checked(1) {
            Some(("$", length)) => {
                let mut answer = vec![0; length.parse().map_err(io::Error::other)?];
                stream.read_exact(&mut answer).await?;
                Ok(String::from_utf8_lossy(&answer).into_owned())
            }
            Some(("+", text)) => Ok(text.to_owned()),
            _ => Err(io::Error::other(format!("{command} was answered {head}"))),
        }
    }

    async fn wait_until_listening(&mut self) -> io::Result<()> {
        let port = self.port.number();
        self.process.wait_until(async || TcpStream::connect(("127.0.0.1", port)).await.is_ok()).await
    }
}

fn spawn(port: &HeldPort, arguments: &[String], clock: Option<&ServerClock>) -> io::Result<Process> {
    let program = std::env::var_os("WEIR_TEST_REDIS_SERVER").map_or_else(|| "redis-server".into(), PathBuf::from);
    let mut command = Command::new(program);
    command.args(["--bind", "127.0.0.1", "--port", &port.number().to_string(), "--save", "", "--appendonly", "no"]);
    if let Some(clock) = clock {
        command.envs(clock.environment());
    }
    Process::spawn(command.args(arguments))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn redis_is_empty_after_each_start() {
        let mut redis = Redis::start_with(&["--maxmemory-policy", "noeviction"]).await.unwrap();
        assert_eq!(redis.ask("SET key kept").await.unwrap(), "OK");
        assert_eq!(redis.ask(r#"EVAL "return redis.call('GET', 'key')" 0"#).await.unwrap(), "kept");
        redis.kill().await.unwrap();
        redis.start_again().await.unwrap();
        assert!(redis.ask("INFO keyspace").await.unwrap().lines().all(|line| !line.starts_with("db0")));
        assert!(redis.ask("NO SUCH COMMAND").await.is_err());
    }
}
