//! Binds the socket on which the server listens: TCP, or a Unix socket.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::net::{TcpListener, TcpSocket, UnixListener, lookup_host};

use crate::config::ServeConfig;
use crate::http::unix_socket::SocketFile;
use crate::lifecycle::error::{Error, Result};

/// Connections that may wait to be accepted. A client beyond it retries after a second. The system may allow fewer.
const BACKLOG: u32 = 4096;

/// A listening socket.
pub(crate) enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The address of a listening socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ServerAddress {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

impl ServerAddress {
    /// The base of the server's URLs, or `unix:PATH`.
    pub(crate) fn url(&self, config: &ServeConfig) -> String {
        match self {
            Self::Tcp(address) => format!("{}://{address}", config.scheme()),
            Self::Unix(path) => format!("unix:{}", path.display()),
        }
    }
}

impl Listener {
    /// Listens on the address or the Unix socket of the settings. The file of a Unix socket lives as long as the value.
    ///
    /// # Errors
    /// The name has no address, or the system refuses it, such as a port that is taken.
    pub(crate) async fn bind(
        config: &ServeConfig,
    ) -> Result<(Self, ServerAddress, Option<SocketFile>)> {
        let Some(path) = &config.uds else {
            let (listener, address) = bind_tcp(config).await?;
            return Ok((Self::Tcp(listener), ServerAddress::Tcp(address), None));
        };
        let failed = |source| Error::ListenOnSocket { path: path.to_owned(), source };
        let (listener, file) = SocketFile::listen(path, BACKLOG).map_err(failed)?;
        Ok((Self::Unix(listener), ServerAddress::Unix(path.to_owned()), Some(file)))
    }
}

async fn bind_tcp(config: &ServeConfig) -> Result<(TcpListener, SocketAddr)> {
    let address = (config.host.as_str(), config.port());
    let failed = |source| Error::Listen { address: format!("{}:{}", address.0, address.1), source };
    let mut listener = Err(ErrorKind::AddrNotAvailable.into());
    // A name may have several addresses, such as localhost's of IPv6 and IPv4. The first that can be used is taken.
    for address in lookup_host(address).await.map_err(failed)? {
        listener = listen(address);
        if listener.is_ok() {
            break;
        }
    }
    let listener = listener.map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    Ok((listener, address))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // Without it, a restarted server could not listen while connections of the last one are in TIME_WAIT.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_host_that_is_not_here_is_refused_with_advice() {
        // An address for documentation, which no machine has, and a name that cannot be looked up.
        let elsewhere = listen("192.0.2.1:0".parse().unwrap()).unwrap_err();
        let unknown = lookup_host(("no such host", 0)).await.err().unwrap();
        for source in [elsewhere, unknown] {
            let error = Error::Listen { address: "a:1".to_owned(), source }.to_string();
            assert!(error.starts_with("cannot listen on a:1: "), "{error}");
            assert!(error.contains("; give an address of this machine with --host"), "{error}");
        }
    }

    #[tokio::test]
    async fn many_connections_may_wait_to_be_accepted() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let patience = Duration::from_millis(900); // less than until the next try
        let connect = |_| TcpStream::connect_timeout(&address, patience).unwrap();
        let waiting: Vec<TcpStream> = (0..200).map(connect).collect();
        assert_eq!(waiting.len(), 200);
    }
}
