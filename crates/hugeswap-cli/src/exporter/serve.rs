//! Where metrics are had: by HTTP at a Unix socket, which only this user can open, or at a port of
//! this machine, where any of its users can read them.

use anyhow::{Context, Result, bail};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;
use tiny_http::{Header, Method, Response, Server};

/// What OpenMetrics' text form is called in HTTP.
const TYPE: &str = "Content-Type: application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Port(SocketAddr),
    Socket(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        const FORM: &str = "give 127.0.0.1:PORT, [::1]:PORT or unix:PATH";
        if let Some(path) = text.strip_prefix("unix:") {
            return match path.is_empty() {
                true => Err(FORM.into()),
                false => Ok(Address::Socket(path.into())),
            };
        }
        let address: SocketAddr = text.parse().map_err(|_| FORM.to_owned())?;
        if !address.ip().is_loopback() {
            return Err(format!(
                "{} can be reached from other machines, and whoever reaches it reads the figures: {FORM}, and have a \
                 proxy before it",
                address.ip()
            ));
        }
        Ok(Address::Port(address))
    }
}

/// Something that answers requests.
pub struct Listening {
    server: Server,
    /// The socket, which goes with it.
    socket: Option<PathBuf>,
    /// Where it is had, in words.
    pub at: String,
}

impl Drop for Listening {
    fn drop(&mut self) {
        if let Some(path) = &self.socket {
            // (It may be gone already.)
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listening {
    pub fn at(address: &Address) -> Result<Listening> {
        let (listener, socket, at) = match address {
            Address::Port(address) => {
                let listener = TcpListener::bind(address)
                    .with_context(|| format!("metrics cannot be served at {address}"))?;
                let at = format!("http://{}/metrics", listener.local_addr()?);
                (tiny_http::Listener::from(listener), None, at)
            }
            Address::Socket(path) => {
                let listener = bind(path)?;
                let at = format!("unix:{} (path /metrics)", path.display());
                (tiny_http::Listener::from(listener), Some(path.clone()), at)
            }
        };
        match Server::from_listener(listener, None) {
            Ok(server) => Ok(Listening { server, socket, at }),
            Err(e) => bail!("metrics cannot be served: {e}"),
        }
    }

    /// Whoever waits for a request does so no more.
    pub fn wake(&self) {
        self.server.unblock();
    }

    /// Answers a request, if one comes within that time.
    pub fn answer(&self, within: Duration, metrics: impl FnOnce() -> String) {
        let Ok(Some(request)) = self.server.recv_timeout(within) else {
            return;
        };
        let path = request.url().split('?').next().unwrap_or_default();
        let is_read = matches!(request.method(), Method::Get | Method::Head);
        let (status, text) = match path {
            "/metrics" if is_read => (200, metrics()),
            "/" if is_read => (200, "The metrics of hugeswap are at /metrics.\n".to_owned()),
            "/" | "/metrics" => (405, "Only GET.\n".to_owned()),
            _ => (404, "There is nothing here; try /metrics.\n".to_owned()),
        };
        // (In one piece: not every reader takes others.)
        let mut response = Response::from_string(text)
            .with_status_code(status)
            .with_chunked_threshold(usize::MAX);
        if path == "/metrics"
            && let Ok(header) = Header::from_str(TYPE)
        {
            response.add_header(header);
        }
        // (Who asked may be gone.)
        let _ = request.respond(response);
    }
}

/// A socket at `path` that only this user can open. One that nobody answers at is replaced.
fn bind(path: &Path) -> Result<UnixListener> {
    let shown = path.display();
    if path.exists() {
        if UnixStream::connect(path).is_ok() {
            bail!("{shown} is in use: another process serves there");
        }
        use std::os::unix::fs::FileTypeExt;
        let is_socket = path
            .symlink_metadata()
            .is_ok_and(|m| m.file_type().is_socket());
        if !is_socket {
            bail!("{shown} is there, and no socket: name another path");
        }
        std::fs::remove_file(path).with_context(|| format!("{shown} cannot be replaced"))?;
    }
    let mask = rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o177));
    let listener = UnixListener::bind(path);
    rustix::process::umask(mask);
    listener.with_context(|| format!("metrics cannot be served at {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn addresses() {
        let is = |text: &str| text.parse::<Address>();
        assert_eq!(
            is("127.0.0.1:80"),
            Ok(Address::Port(([127, 0, 0, 1], 80).into()))
        );
        assert_eq!(is("unix:/run/x"), Ok(Address::Socket("/run/x".into())));
        assert!(is("[::1]:9402").is_ok());
        for (text, says) in [
            ("0.0.0.0:80", "other machines"),
            ("192.168.0.1:80", "other machines"),
            ("[::]:80", "other machines"),
            ("9402", "give 127.0.0.1:PORT"),
            ("localhost:80", "give 127.0.0.1:PORT"),
            ("unix:", "unix:PATH"),
            ("", "unix:PATH"),
        ] {
            let e = is(text).unwrap_err();
            assert!(e.contains(says), "{text}: {e}");
        }
    }

    fn ask(listening: &Listening, mut stream: impl Read + Write, request: &str) -> String {
        stream.write_all(request.as_bytes()).unwrap();
        listening.answer(Duration::from_secs(5), || "some_metric 1\n# EOF\n".into());
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn requests_are_answered_at_a_socket_of_this_user_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let address = Address::Socket(path.clone());
        let listening = Listening::at(&address).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        let get = |what: &str| {
            let stream = UnixStream::connect(&path).unwrap();
            ask(
                &listening,
                stream,
                &format!("{what} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"),
            )
        };
        let answer = get("GET /metrics");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(
            answer.contains("openmetrics-text") && answer.ends_with("# EOF\n"),
            "{answer}"
        );
        assert!(get("GET /other").starts_with("HTTP/1.1 404"));
        assert!(get("POST /metrics").starts_with("HTTP/1.1 405"));
        let e = format!("{:#}", Listening::at(&address).map(drop).unwrap_err());
        assert!(e.contains("is in use"), "{e}");
        drop(listening);
        assert!(!path.exists());
        // What a process that was killed leaves is replaced; anything else is not.
        drop(UnixListener::bind(&path).unwrap());
        drop(Listening::at(&address).unwrap());
        std::fs::write(&path, "mine").unwrap();
        let e = format!("{:#}", Listening::at(&address).map(drop).unwrap_err());
        assert!(e.contains("no socket"), "{e}");
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }

    #[test]
    fn nonsense_is_no_request() {
        let listening = Listening::at(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let port = listening.at.split('/').nth(2).unwrap().to_owned();
        for nonsense in [
            "\r\n\r\n",
            "GET\r\n\r\n",
            "\0\u{1}\r\n\r\n",
            "GET / HTTP/9.9\r\n\r\n",
        ] {
            let mut stream = std::net::TcpStream::connect(&port).unwrap();
            stream.write_all(nonsense.as_bytes()).unwrap();
            listening.answer(Duration::from_millis(50), String::new);
        }
        let stream = std::net::TcpStream::connect(&port).unwrap();
        let answer = ask(&listening, stream, "GET / HTTP/1.0\r\n\r\n");
        assert!(answer.contains("at /metrics"), "{answer}");
    }
}
