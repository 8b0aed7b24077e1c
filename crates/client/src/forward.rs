//! Port forwarding: a port of this machine that leads to a server elsewhere.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::error::{Error, Result};

/// A port of this machine that leads to a server in a cluster. It is closed when this is dropped.
#[derive(Debug)]
pub struct Forward {
    /// URL of the server on this machine, without `/v1`.
    pub url: String,
    task: JoinHandle<()>,
}

impl Forward {
    /// Opens the port and passes each connection to `connect`. Port 0 chooses a free one.
    #[cfg_attr(not(feature = "kubernetes"), expect(dead_code, reason = "all servers are here"))]
    pub(crate) async fn open<C>(
        scheme: &str,
        port: u16,
        connect: impl Fn(TcpStream) -> C + Send + 'static,
    ) -> Result<Self>
    where
        C: Future<Output = ()> + Send + 'static,
    {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let wrong = |error| Error::backend(format!("{address} cannot be opened"), error);
        let listener = TcpListener::bind(address).await.map_err(wrong)?;
        let address = listener.local_addr().map_err(wrong)?;
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connect(stream));
            }
        });
        Ok(Self { url: format!("{scheme}://{address}"), task })
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}
